"""The KV cache of an open trajectory is kept between its turns, and is as good as a fresh one."""

import asyncio
from typing import Any

import pytest

from tests.rollout.hf.conftest import Serve
from tests.rollout.hf.tiny_models import CONFIGS, Reference, generate, steps_later

HOW: dict[str, Any] = {"ignore_eos": True, "max_tokens": 12}
QUESTION, RESULT = [5, 6, 7, 8], [20, 21, 22]


@pytest.mark.parametrize("name", CONFIGS)
async def test_a_turn_reads_only_its_new_tokens_and_the_last_sampled_one(name: str, serve: Serve) -> None:
    reference = Reference.make(name)
    replica = await serve(reference)
    await replica.open("a")
    first = await generate(replica, "a", QUESTION, seed=0, **HOW)
    context = QUESTION + first.token_ids + RESULT
    before = (await replica.health())["forwarded_tokens"]
    second = await generate(replica, "a", context, seed=1, **HOW)
    read = (await replica.health())["forwarded_tokens"] - before
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == len(QUESTION) + len(first.token_ids) - 1
    assert read == len(RESULT) + 1 + len(second.token_ids) - 1
    assert second.log_probs == pytest.approx(reference.log_probs(context, second.token_ids), abs=1e-5)
    fresh = await generate(replica, "other", context, seed=1, **HOW)
    assert fresh.num_cached_tokens == 0
    assert fresh.token_ids == second.token_ids
    assert fresh.log_probs == pytest.approx(second.log_probs, abs=1e-5)


async def test_only_the_common_prefix_is_reused(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await replica.open("a")
    first = await generate(replica, "a", QUESTION, seed=0, **HOW)
    fork = QUESTION + first.token_ids[:3] + RESULT
    assert first.token_ids[3] != RESULT[0]
    forked = await generate(replica, "a", fork, seed=1, **HOW)
    assert forked.num_cached_tokens == len(QUESTION) + 3
    assert forked.log_probs == pytest.approx(qwen2.log_probs(fork, forked.token_ids), abs=1e-5)
    main = await generate(replica, "a", QUESTION + first.token_ids + RESULT, seed=1, **HOW)
    assert main.num_cached_tokens == len(QUESTION) + len(first.token_ids) - 1


async def test_the_same_prompt_again_reads_its_last_token(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await replica.open("a")
    await generate(replica, "a", QUESTION, seed=0, **HOW)
    again = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert again.num_cached_tokens == len(QUESTION) - 1


async def test_nothing_is_kept_without_a_lease_or_after_it(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    first = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert (await replica.health())["kept_caches"] == 0
    await replica.open("a")
    await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert (await replica.health())["kept_caches"] == 1
    await replica.close("a")
    await replica.close("a")
    second = await generate(replica, "a", QUESTION + first.token_ids + RESULT, seed=1, **HOW)
    assert second.num_cached_tokens == 0
    assert (await replica.health())["open_leases"] == 0


@pytest.mark.parametrize("how", ["clear_kv_cache", "sleep", "release_kv_cache"])
async def test_kept_caches_can_be_dropped_while_requests_run(how: str, qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await replica.open("a")
    await generate(replica, "a", QUESTION, seed=0, **HOW)
    long = {"ignore_eos": True, "max_tokens": 200, "seed": 5}
    expected = await generate(replica, "b", QUESTION, **long)
    running = asyncio.create_task(generate(replica, "b", QUESTION, **long))
    await steps_later(replica, 3)
    await getattr(replica, how)()
    health = await replica.health()
    assert health["kept_caches"] == 0
    if how != "clear_kv_cache":
        assert (health["state"], health["running"]) != ("serving", 1)
        assert health["kv_memory_bytes"] == 0
        await replica.wake_up()
        await replica.resume_kv_cache()
    assert (await running).token_ids == expected.token_ids


async def test_the_least_recently_used_is_dropped_first(qwen2: Reference, serve: Serve) -> None:
    bytes_per_token = 2 * 2 * 2 * 8 * 4
    replica = await serve(qwen2, max_model_len=64, max_num_seqs=1, kv_memory_bytes=(64 + 40) * bytes_per_token)
    answers = {}
    for name in ("a", "b", "c"):
        await replica.open(name)
        answers[name] = (await generate(replica, name, QUESTION, seed=0, **HOW)).token_ids  # keeps 15 tokens
    health = await replica.health()
    assert health["kept_caches"] == 2
    assert health["kv_memory_bytes"] <= (64 + 40) * bytes_per_token
    cached = {}
    for name in ("c", "a"):
        output = await generate(replica, name, QUESTION + answers[name] + RESULT, seed=1, **HOW)
        cached[name] = output.num_cached_tokens
    assert cached == {"c": 15, "a": 0}


async def test_several_conversations_of_one_trajectory_are_kept(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await replica.open("a")
    main, child = await asyncio.gather(
        generate(replica, "a", QUESTION, seed=0, **HOW), generate(replica, "a", [30, 31, 32], seed=1, **HOW)
    )
    outputs = await asyncio.gather(
        generate(replica, "a", QUESTION + main.token_ids + RESULT, seed=2, **HOW),
        generate(replica, "a", [30, 31, 32, *child.token_ids, *RESULT], seed=3, **HOW),
    )
    assert [output.num_cached_tokens for output in outputs] == [15, 14]


@pytest.mark.parametrize("deterministic", [False, True])
async def test_samples_of_one_prompt_read_it_once(deterministic: bool, qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, deterministic=deterministic)
    prompt = list(range(10, 60))
    names = [str(number) for number in range(8)]
    for name in names:
        await replica.open(name)
    await replica.pause_generation()
    tasks = [asyncio.create_task(generate(replica, name, prompt, seed=int(name), **HOW)) for name in names]
    await asyncio.sleep(0)
    await replica.resume_generation()
    outputs = await asyncio.gather(*tasks)
    assert sorted(output.num_cached_tokens for output in outputs) == [0, *[50] * 7]
    assert (await replica.health())["forwarded_tokens"] == 50 + 8 * 11
    assert len({tuple(output.token_ids) for output in outputs}) == 8
    for output in outputs:
        assert output.log_probs == pytest.approx(qwen2.log_probs(prompt, output.token_ids), abs=1e-5)


async def test_samples_of_one_prompt_get_no_more_rows_than_there_may_be(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_num_seqs=4)
    prompt = list(range(10, 50))
    await generate(replica, "first", prompt[:5], seed=0, **HOW)
    outputs = await asyncio.gather(*(generate(replica, str(seed), prompt, seed=seed, **HOW) for seed in range(30)))
    assert len({tuple(output.token_ids) for output in outputs}) == 30
    assert replica._engine._pool.slots == 4


async def test_a_common_beginning_is_read_once(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_num_seqs=4)
    system = list(range(10, 40))
    prompts = [[*system, 50 + number, 60 + number] for number in range(9)]
    await replica.pause_generation()
    tasks = [asyncio.create_task(generate(replica, str(p[-1]), p, seed=p[-1], **HOW)) for p in prompts]
    await asyncio.sleep(0)
    await replica.resume_generation()
    outputs = await asyncio.gather(*tasks)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.log_probs == pytest.approx(qwen2.log_probs(prompt, output.token_ids), abs=1e-5)
    assert (await replica.health())["forwarded_tokens"] < 9 * 11 + len(prompts[0]) * 4


async def test_a_pool_that_was_released_comes_back_in_its_old_size(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await asyncio.gather(*(generate(replica, str(i), QUESTION, ignore_eos=True, max_tokens=150) for i in range(3)))
    pool = replica._engine._pool
    grown = (pool.slots, pool.capacity)
    await replica.sleep(keep_weights=False)
    assert pool.memory_bytes == 0
    await replica.update_weights(qwen2.weights(), 1)
    await replica.wake_up()
    await generate(replica, "one", QUESTION, ignore_eos=True, max_tokens=1)
    assert (pool.slots, pool.capacity) == grown
