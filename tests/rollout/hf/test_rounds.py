"""Deterministic rounds: what runs together depends on the requests, not on when they arrive."""

import asyncio
import itertools
from typing import Any

import numpy as np

from agentverl.rollout.hf.replica import HFReplica
from agentverl.trajectory import TokenOutput
from tests.rollout.hf.conftest import Serve
from tests.rollout.hf.tiny_models import Reference, generate, steps_later


async def episodes(serve: Serve, reference: Reference, seed: int) -> tuple[dict[str, list[TokenOutput]], int]:
    """Six trajectories of two turns, with pauses of random length before each request."""
    replica = await serve(reference, deterministic=True, max_num_seqs=4)
    random = np.random.default_rng(seed)
    names = [str(number) for number in range(6)]
    pauses = {name: random.random(2) * 0.02 for name in names}
    for name in names:
        await replica.open(name)

    async def one(name: str) -> list[TokenOutput]:
        context, outputs = [5, 6, int(name) + 7], []
        for turn in range(2):
            await asyncio.sleep(pauses[name][turn])
            outputs.append(await generate(replica, name, context, seed=turn, max_tokens=8 + int(name)))
            context = context + outputs[-1].token_ids + [30, 31]
        await replica.close(name)
        return outputs

    answers = await asyncio.gather(*map(one, names))
    for output in itertools.chain(*answers):
        assert output.extra_fields.pop("queue_seconds") >= 0
    return dict(zip(names, answers, strict=True)), (await replica.health())["steps"]


async def test_results_are_bit_equal_whatever_the_timing(qwen2: Reference, serve: Serve) -> None:
    first, second = [await episodes(serve, qwen2, seed) for seed in (0, 1)]
    assert first == second


async def test_a_round_waits_for_every_open_lease(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, deterministic=True)
    how: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True}
    await replica.open("a")
    await replica.open("b")
    task = asyncio.create_task(generate(replica, "a", [5], **how))
    await asyncio.sleep(0.03)
    assert not task.done()
    other = asyncio.create_task(generate(replica, "b", [5], **how))
    await asyncio.gather(task, other)
    task = asyncio.create_task(generate(replica, "a", [5], **how))
    await asyncio.sleep(0.03)
    assert not task.done()
    await replica.close("b")
    assert len((await task).token_ids) == 3


async def test_requests_that_arrive_in_a_round_wait_for_the_next(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, deterministic=True)
    finished: list[str] = []

    async def one(name: str, tokens: int) -> None:
        await generate(replica, name, [5], max_tokens=tokens, ignore_eos=True)
        finished.append(name)

    long = asyncio.create_task(one("long", 200))
    await steps_later(replica, 2)
    await asyncio.gather(long, one("short", 1))
    assert finished == ["long", "short"]


async def test_a_round_does_not_depend_on_what_was_served_before(qwen2: Reference, serve: Serve) -> None:
    """Many rows of different lengths, which are put in order from time to time: a resumed run has another past."""
    random = np.random.default_rng(0)
    prompts = {f"{number:03}": random.integers(2, 90, random.integers(1, 180)).tolist() for number in range(128)}
    answers = []
    for past in (0, 5):
        replica = await serve(qwen2, deterministic=True, max_num_seqs=128, kv_memory_bytes=1 << 28)
        for number in range(past):
            await generate(replica, f"past {number}", [5, 6], max_tokens=1 + number, ignore_eos=True, seed=number)
        for name in prompts:
            await replica.open(name)

        async def one(name: str, replica: HFReplica = replica) -> TokenOutput:
            length = 5 + int(name) % 40
            answer = await generate(replica, name, prompts[name], max_tokens=length, ignore_eos=True, seed=int(name))
            await replica.close(name)
            return answer

        outputs = await asyncio.gather(*map(one, prompts))
        answers.append([(output.token_ids, output.log_probs) for output in outputs])
    assert answers[0] == answers[1]
