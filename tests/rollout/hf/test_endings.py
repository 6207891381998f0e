"""How answers end: end of turn, stop ids and strings, lengths, and aborts."""

import asyncio
from typing import Any

import pytest

from agentverl.errors import BadInputError
from tests.rollout.hf.conftest import Serve
from tests.rollout.hf.tiny_models import Reference, generate, steps_later

EOS = 1


async def test_the_end_of_turn_stays_in_the_answer(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    outputs = await asyncio.gather(*(generate(replica, str(i), [5, i + 2], seed=i, max_tokens=60) for i in range(30)))
    completed = [output for output in outputs if output.stop_reason == "completed"]
    assert completed
    for output in completed:
        assert output.token_ids.index(EOS) == len(output.token_ids) - 1


async def test_ignore_eos_goes_on_to_max_tokens(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    outputs = await asyncio.gather(
        *(generate(replica, str(i), [5, i + 2], seed=i, ignore_eos=True, max_tokens=60) for i in range(30))
    )
    assert {output.stop_reason for output in outputs} == {"length"}
    assert {len(output.token_ids) for output in outputs} == {60}
    assert any(EOS in output.token_ids for output in outputs)


async def test_a_stop_token_ends_the_answer_and_stays(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    free = await generate(replica, "a", [5], seed=1, ignore_eos=True, max_tokens=40)
    stop = free.token_ids[20]
    output = await generate(replica, "a", [5], seed=1, ignore_eos=True, max_tokens=40, stop_token_ids=[0, stop])
    assert output.stop_reason == "completed"
    assert output.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


async def test_a_stop_string_across_tokens_ends_the_answer_with_the_token_that_completes_it(
    qwen2: Reference, serve: Serve, tokenizer: Any
) -> None:
    replica = await serve(qwen2, tokenizer)
    how = {"ignore_eos": True, "max_tokens": 60, "seed": 2}
    free = await generate(replica, "a", [5], **how)
    text = tokenizer.decode(free.token_ids)
    pieces = [tokenizer.decode([token]) for token in free.token_ids]
    stop = "".join(pieces[30:34])
    assert text.find(stop) == len("".join(pieces[:30]))
    output = await generate(replica, "a", [5], **how, stop=["never there", stop])
    assert output.stop_reason == "completed"
    assert output.token_ids == free.token_ids[:34]
    assert len(output.log_probs or ()) == 34


async def test_a_stop_string_that_begins_in_the_prompt_does_not_count(
    qwen2: Reference, serve: Serve, tokenizer: Any
) -> None:
    replica = await serve(qwen2, tokenizer)
    how = {"ignore_eos": True, "max_tokens": 10, "seed": 2}
    free = await generate(replica, "a", [5, 6], **how)
    stop = tokenizer.decode([6, free.token_ids[0]])
    output = await generate(replica, "a", [5, 6], **how, stop=stop)
    assert output.token_ids == free.token_ids


async def test_answers_are_cut_at_the_context(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_model_len=32)
    how = {"ignore_eos": True}
    asked_too_much = await generate(replica, "a", [4] * 20, **how, max_tokens=500)
    asked_nothing = await generate(replica, "a", [4] * 20, **how)
    last_place = await generate(replica, "a", [4] * 31, **how)
    assert [len(output.token_ids) for output in (asked_too_much, asked_nothing, last_place)] == [12, 12, 1]


async def test_a_prompt_without_room_for_a_token_is_refused(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_model_len=32)
    with pytest.raises(BadInputError, match="32 tokens leaves no room for an answer in max_model_len=32"):
        await generate(replica, "a", [4] * 32)


@pytest.mark.parametrize("prompt", [[], [96], [-1]])
async def test_a_prompt_that_is_no_list_of_known_ids_is_refused(
    prompt: list[int], qwen2: Reference, serve: Serve
) -> None:
    replica = await serve(qwen2)
    with pytest.raises(BadInputError, match=r"expected|vocabulary"):
        await generate(replica, "a", prompt)


async def test_abort_ends_one_trajectory_with_what_it_has(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    how = {"ignore_eos": True, "max_tokens": 250, "seed": 0}
    tasks = {name: asyncio.create_task(generate(replica, name, [5], **how)) for name in ("a", "b")}
    await steps_later(replica, 3)
    await replica.abort("a")
    aborted, whole = await asyncio.gather(*tasks.values())
    assert aborted.stop_reason == "aborted"
    assert whole.stop_reason == "length"
    assert len(aborted.log_probs or ()) == len(aborted.token_ids) < 250
    assert aborted.token_ids == whole.token_ids[: len(aborted.token_ids)]
    assert aborted.weight_versions == [(len(aborted.token_ids), 0)]


async def test_abort_all_ends_running_and_waiting_requests(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_num_seqs=2)
    tasks = [
        asyncio.create_task(generate(replica, str(i), [5], ignore_eos=True, max_tokens=250, seed=i)) for i in range(5)
    ]
    await steps_later(replica, 3)
    await replica.abort_all_requests()
    outputs = await asyncio.gather(*tasks)
    assert {output.stop_reason for output in outputs} == {"aborted"}
    assert outputs[-1].token_ids == []
    health = await replica.health()
    assert (health["running"], health["waiting"]) == (0, 0)


async def test_cancelling_a_request_frees_its_row(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    task = asyncio.create_task(generate(replica, "a", [5], ignore_eos=True, max_tokens=250))
    await steps_later(replica, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await generate(replica, "b", [5], max_tokens=1)
    assert (await replica.health())["running"] == 0


async def test_time_in_the_queue_is_told(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_num_seqs=1)
    how = {"ignore_eos": True, "max_tokens": 100}
    first, second = await asyncio.gather(generate(replica, "a", [5], **how), generate(replica, "b", [5], **how))
    assert 0 <= first.extra_fields["queue_seconds"] < second.extra_fields["queue_seconds"]


async def test_pause_keeps_requests_where_they_are(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    expected = await generate(replica, "a", [5], ignore_eos=True, max_tokens=60, seed=0)
    task = asyncio.create_task(generate(replica, "a", [5], ignore_eos=True, max_tokens=60, seed=0))
    await steps_later(replica, 3)
    await replica.pause_generation()
    steps = (await replica.health())["steps"]
    await asyncio.sleep(0.05)
    health = await replica.health()
    assert (health["state"], health["steps"]) == ("paused", steps)
    await replica.resume_generation()
    assert (await task).token_ids == expected.token_ids
