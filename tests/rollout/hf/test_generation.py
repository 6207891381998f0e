"""What the server samples is what the model says, whatever it is batched with."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentverl.rollout.hf import server
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.trajectory import TokenOutput
from tests.rollout.hf.conftest import Serve
from tests.rollout.hf.tiny_models import CONFIGS, VOCABULARY, Reference, generate


def random_prompts(count: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(2, VOCABULARY, random.integers(1, 30)).tolist() for _ in range(count)]


def assert_same(one: TokenOutput, other: TokenOutput) -> None:
    assert one.token_ids == other.token_ids
    assert one.stop_reason == other.stop_reason
    assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
async def test_log_probs_equal_those_of_a_plain_forward_pass(name: str, serve: Serve) -> None:
    reference = Reference.make(name)
    replica = await serve(reference, max_num_seqs=5, max_num_batched_tokens=24)
    prompts, temperatures = random_prompts(9), [0.6, 1.0, 1.3]
    outputs = await asyncio.gather(
        *(
            generate(replica, str(i), prompt, temperature=temperatures[i % 3], max_tokens=4 + 3 * i, seed=i)
            for i, prompt in enumerate(prompts)
        )
    )
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        expected = reference.log_probs(prompt, output.token_ids, temperatures[i % 3])
        assert output.log_probs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
async def test_greedy_answers_are_the_argmax_at_each_step(name: str, serve: Serve) -> None:
    reference = Reference.make(name)
    replica = await serve(reference)
    prompt = random_prompts(1)[0]
    output = await generate(replica, "a", prompt, temperature=0, max_tokens=12, ignore_eos=True)
    assert output.token_ids == reference.most_likely(prompt, output.token_ids)
    assert output.log_probs == pytest.approx(reference.log_probs(prompt, output.token_ids), abs=1e-5)


async def test_requests_of_trajectories_that_are_there_begin_together(
    qwen2: Reference, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GATHER_SECONDS", 0.5)
    replica = await serve(qwen2)
    names = [str(number) for number in range(4)]
    for name in names:
        await replica.open(name)
    answers = []
    for name in names:
        await asyncio.sleep(0.01)
        answers.append(asyncio.create_task(generate(replica, name, [5, 6, 7], ignore_eos=True, max_tokens=6)))
    await asyncio.gather(*answers)
    assert (await replica.health())["steps"] == 6


async def test_a_trajectory_without_a_request_holds_others_up_for_a_moment_only(
    qwen2: Reference, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GATHER_SECONDS", 1.0)
    replica = await serve(qwen2)
    await replica.open("busy elsewhere")
    await replica.open("here")
    started = time.monotonic()
    answer = await generate(replica, "here", [5, 6, 7], ignore_eos=True, max_tokens=6)
    assert len(answer.token_ids) == 6
    assert time.monotonic() - started < 5.0  # once, where no more comes, and not as often as at most


REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=24),
            "params": st.fixed_dictionaries(
                {
                    "temperature": st.sampled_from([0.0, 0.6, 1.0, 1.3]),
                    "max_tokens": st.integers(1, 30),
                    "seed": st.integers(0, 2**40),
                    "top_p": st.sampled_from([1.0, 1.0, 0.7]),
                    "top_k": st.sampled_from([-1, -1, 5]),
                    "min_p": st.sampled_from([0.0, 0.0, 0.05]),
                    "repetition_penalty": st.sampled_from([1.0, 1.0, 1.2]),
                    "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=3),
                    "stop": st.lists(st.sampled_from(["A", "b", "xy"]), max_size=2),
                    "ignore_eos": st.booleans(),
                }
            ),
            "pause": st.integers(0, 3),
        }
    ),
    min_size=2,
    max_size=10,
)


@settings(max_examples=6)
@given(requests=REQUESTS, slots=st.integers(2, 8), budget=st.integers(4, 60))
def test_interleaved_requests_get_what_each_gets_alone(
    requests: list[dict[str, Any]], slots: int, budget: int, qwen2: Reference, tokenizer: Any
) -> None:
    async def answers(limits: HFSettings, together: bool) -> list[TokenOutput]:
        replica = HFReplica(qwen2.config, tokenizer, limits)
        await replica.init_standalone()
        await replica.update_weights(qwen2.weights(), 0)

        async def one(number: int) -> TokenOutput:
            if together:
                await asyncio.sleep(requests[number]["pause"] / 1000)
            return await generate(replica, str(number), requests[number]["prompt"], **requests[number]["params"])

        numbers = range(len(requests))
        outputs = await asyncio.gather(*map(one, numbers)) if together else [await one(number) for number in numbers]
        await replica.shutdown()
        return outputs

    batched = asyncio.run(answers(HFSettings(max_num_seqs=slots, max_num_batched_tokens=budget), together=True))
    alone = asyncio.run(answers(HFSettings(max_num_seqs=1), together=False))
    for one, other in zip(batched, alone, strict=True):
        assert_same(one, other)


async def test_a_seed_repeats_an_answer_and_other_seeds_differ(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    how = {"max_tokens": 20, "ignore_eos": True}
    same = await asyncio.gather(*(generate(replica, str(i), [5, 6], seed=7, **how) for i in range(3)))
    different = await asyncio.gather(*(generate(replica, str(i), [5, 6], seed=i, **how) for i in range(8)))
    unseeded = await asyncio.gather(*(generate(replica, str(i), [5, 6], **how) for i in range(8)))
    assert len({tuple(output.token_ids) for output in same}) == 1
    assert len({tuple(output.token_ids) for output in different}) == 8
    assert len({tuple(output.token_ids) for output in unseeded}) == 8


async def test_a_request_longer_than_a_block_of_random_numbers_keeps_its_stream(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    long = await generate(replica, "a", [3], max_tokens=130, ignore_eos=True, seed=3)
    short = await generate(replica, "a", [3], max_tokens=70, ignore_eos=True, seed=3)
    assert long.token_ids[:70] == short.token_ids
    blocks = [long.token_ids[start : start + 64] for start in (0, 64)]
    assert blocks[0] != blocks[1]


async def test_little_kv_memory_preempts_requests_without_changing_them(qwen2: Reference, serve: Serve) -> None:
    prompts = random_prompts(6)
    how = {"max_tokens": 110, "ignore_eos": True}
    plenty = await serve(qwen2)
    # Room for the 256 positions that one sequence may have, and a little more.
    scarce = await serve(qwen2, kv_memory_bytes=320 * 2 * 2 * 2 * 8 * 4)
    expected = await asyncio.gather(*(generate(plenty, str(i), p, seed=i, **how) for i, p in enumerate(prompts)))
    outputs = await asyncio.gather(*(generate(scarce, str(i), p, seed=i, **how) for i, p in enumerate(prompts)))
    for one, other in zip(outputs, expected, strict=True):
        assert_same(one, other)
    assert sum(output.num_preempted for output in outputs) > 0
    assert not any(output.num_preempted for output in expected)


async def test_a_lower_priority_value_is_served_first(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_num_seqs=1)
    finished: list[str] = []

    async def one(name: str, priority: int) -> None:
        how = {"max_tokens": 5, "ignore_eos": True}
        await replica.generate(name, prompt_ids=[4, 5], sampling_params=how, priority=priority)
        finished.append(name)

    await replica.pause_generation()
    tasks = [asyncio.create_task(one(name, priority)) for name, priority in [("low", 2), ("mid", 1), ("first", 0)]]
    await asyncio.sleep(0)
    await replica.resume_generation()
    await asyncio.gather(*tasks)
    assert finished == ["first", "mid", "low"]


async def test_bfloat16_serves_and_stays_near_float32(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, dtype="bfloat16")
    output = await generate(replica, "a", [7, 8, 9], max_tokens=20, seed=0, ignore_eos=True)
    assert output.log_probs == pytest.approx(qwen2.log_probs([7, 8, 9], output.token_ids), abs=0.3)


async def test_log_probs_are_left_out_when_not_asked_for(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    output = await generate(replica, "a", [4], max_tokens=2, logprobs=False)
    assert output.log_probs is None


async def test_log_probs_are_those_of_the_undistorted_distribution(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    bends: list[dict[str, Any]] = [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"repetition_penalty": 1.5}]
    outputs = await asyncio.gather(
        *(generate(replica, "a", [4, 9], max_tokens=10, seed=1, temperature=0.8, **bend) for bend in bends)
    )
    for output in outputs:
        assert output.log_probs == pytest.approx(qwen2.log_probs([4, 9], output.token_ids, 0.8), abs=1e-5)
