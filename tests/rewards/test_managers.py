"""Managers: when a trajectory is judged, with what beside it, where, and how often."""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import BoundaryError, PluginError, SettingsError
from agentverl.rewards import code, rate_limit
from agentverl.rewards.at_once import most_at_once
from agentverl.rewards.base import RewardContext
from agentverl.rewards.length import overlong_penalty
from agentverl.rewards.rate_limit import RateLimit
from agentverl.rewards.scoring_loops import ScoringLoops
from tests.rewards.conftest import MakeManager, answer_of, sequence_of

MODULE = """
import asyncio, os, threading, time

def compare(data_sources, solution_strs, ground_truths, extra_infos, bonus=0.0):
    best = max(solution_strs)
    return [float(text == best) + bonus for text in solution_strs]

def short(data_sources, solution_strs, ground_truths, extra_infos):
    return [1.0]

def mixed(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": 1.0, "pred": text} if text != "b" else float("nan") for text in solution_strs]

def one(data_source, solution_str, ground_truth):
    return {"score": 1.0, "pid": os.getpid()}

async def two(data_source, solution_str, ground_truth):
    return {"score": 1.0, "pid": os.getpid()}

def endless(data_source, solution_str, ground_truth):
    while True:
        pass

def tools(data_source, solution_str, ground_truth):
    return {"score": 1.0, "format": 0.5, "style": "good"}

async def blocks(data_source, solution_str, ground_truth):
    time.sleep(0.3)
    return {"score": 1.0, "thread": threading.get_ident()}

async def waits(data_source, solution_str, ground_truth):
    await asyncio.sleep(0.05)
    return {"score": 1.0, "thread": threading.get_ident()}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "functions.py"
    path.write_text(MODULE)
    return str(path)


def custom(file: str, name: str) -> dict[str, str]:
    return {"path": file, "name": name}


async def test_batch_sees_the_answers_to_a_prompt_together(file: str, make_manager: MakeManager) -> None:
    manager = make_manager("batch", custom_reward_function=custom(file, "compare"), reward_kwargs={"bonus": 0.5})
    assert manager.scores_groups
    results = await manager.score_group([answer_of(text) for text in ("a", "c", "b")])
    assert [getattr(result, "score", None) for result in results] == [0.5, 1.5, 0.5]
    assert (await manager.score(answer_of("a"))).score == 1.5


async def test_a_batch_fails_alone_where_its_score_is_none_and_as_a_whole_where_the_list_is_wrong(
    file: str, make_manager: MakeManager
) -> None:
    manager = make_manager("batch", custom_reward_function=custom(file, "mixed"))
    good, bad = await manager.score_group([answer_of("a"), answer_of("b")])
    assert getattr(good, "components", None) == {"pred": "a"}
    assert isinstance(bad, BoundaryError)
    assert "returned nan" in str(bad)
    manager = make_manager("batch", custom_reward_function=custom(file, "short"))
    with pytest.raises(BoundaryError, match="returned 1 scores; expected a list of 2"):
        await manager.score_group([answer_of("a"), answer_of("b")])


async def test_batch_asks_other_rewards_one_by_one(file: str, make_manager: MakeManager) -> None:
    manager = make_manager("batch", components=[{"name": "own", "settings": {"function": f"{file}:one"}}])
    results = await manager.score_group([answer_of("a"), answer_of("b")])
    assert [getattr(result, "score", None) for result in results] == [1.0, 1.0]
    with pytest.raises(PluginError, match="no reward function for data_source 'mine'"):
        make_manager("batch").check({"mine"})


@pytest.mark.parametrize(("length", "penalty"), [(10, 0.0), (16, 0.0), (17, -0.25), (18, -0.5), (20, -1.0), (22, -1.5)])
async def test_dapo_shapes_the_score_near_the_limit(
    length: int, penalty: float, file: str, make_manager: MakeManager
) -> None:
    assert overlong_penalty(length, 20, 4, 1.0) == penalty
    buffer = {"enable": True, "len": 4, "penalty_factor": 1.0, "log": True}
    manager = make_manager(
        "dapo",
        RewardContext(max_response_length=20),
        custom_reward_function=custom(file, "one"),
        reward_kwargs={"overlong_buffer_cfg": buffer},
    )
    result = await manager.score(answer_of(trajectory=[sequence_of(length=length)]))
    assert result.score == 1.0 + penalty
    assert result.components["overlong_reward"] == penalty
    assert result.components["overlong"] == float(penalty < 0)
    assert result.components["acc"] == 1.0


@given(st.integers(0, 100), st.integers(1, 50), st.floats(0, 5))
def test_the_penalty_never_rewards_and_never_rises(limit: int, buffer: int, factor: float) -> None:
    penalties = [overlong_penalty(length, limit, min(buffer, max(limit, 1)), factor) for length in range(limit + 10)]
    assert max(penalties) <= 0
    assert penalties == sorted(penalties, reverse=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"overlong_buffer_cfg": {"enable": True, "len": 40}}, "len=40: expected 1 to max_resp_len=20"),
        ({"overlong_buffer_cfg": {"enable": True}}, "len=0: expected 1"),
        ({"overlong_buffer_cfg": {"enabled": True}}, r"did you mean 'overlong_buffer_cfg|unknown"),
        ({"max_resp_len": "long"}, "max_resp_len = 'long'"),
        ({"maximum": 3}, "takes no argument 'maximum'"),
    ],
)
def test_wrong_settings_of_dapo_are_refused(given: Any, said: str, file: str, make_manager: MakeManager) -> None:
    with pytest.raises(SettingsError, match=said):
        make_manager(
            "dapo",
            RewardContext(max_response_length=20),
            custom_reward_function=custom(file, "one"),
            reward_kwargs=given,
        )


async def test_gdpo_wants_every_key_as_a_number(file: str, make_manager: MakeManager) -> None:
    function = custom(file, "tools")
    complete = make_manager("gdpo", RewardContext(reward_keys=("format",)), custom_reward_function=function)
    assert (await complete.score(answer_of())).components["format"] == 0.5
    for key, said in (("style", "reported .good."), ("frmat", "reported nothing, .* it reports format, style")):
        manager = make_manager("gdpo", RewardContext(reward_keys=(key,)), custom_reward_function=function)
        with pytest.raises(BoundaryError, match=said):
            await manager.score(answer_of())


async def test_remote_runs_synchronous_functions_in_processes(file: str, make_manager: MakeManager) -> None:
    manager = make_manager("remote", custom_reward_function=custom(file, "one"), num_workers=1)
    assert (await manager.score(answer_of())).components["pid"] != os.getpid()
    asynchronous = make_manager("remote", custom_reward_function=custom(file, "two"))
    assert (await asynchronous.score(answer_of())).components["pid"] == os.getpid()


async def test_remote_ends_a_function_that_never_would(file: str, make_manager: MakeManager) -> None:
    manager = make_manager("remote", custom_reward_function=custom(file, "endless"), num_workers=1, timeout_seconds=0.2)
    result = await manager.score(answer_of())
    assert (result.score, result.components) == (0.0, {"scorer_out_of_time": 1.0})


async def test_rate_limited_spaces_trajectories_and_bounds_those_at_a_time(
    file: str, make_manager: MakeManager
) -> None:
    manager = make_manager("rate_limited", custom_reward_function=custom(file, "one"), max_rpm=6000)
    started = time.monotonic()
    await asyncio.gather(*(manager.score(answer_of()) for _ in range(31)))
    assert time.monotonic() - started > 0.3
    with pytest.raises(ValueError, match="a limit for the manager rate_limited"):
        make_manager("rate_limited")


async def test_limits_of_requests_tokens_and_concurrency() -> None:
    most = 0
    under_way = 0

    async def ask(limit: RateLimit, tokens: int = 0) -> None:
        nonlocal most, under_way
        async with limit.request(tokens):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1

    limit = RateLimit(max_concurrent=3)
    await asyncio.gather(*(ask(limit) for _ in range(10)))
    assert most == 3
    limit = RateLimit(max_tpm=60_000)  # a thousand a second
    started = time.monotonic()
    await asyncio.gather(*(ask(limit, 50) for _ in range(5)))
    assert time.monotonic() - started > 0.2
    limit.correct(50, 250)
    started = time.monotonic()
    await ask(limit, 50)
    assert time.monotonic() - started > 0.2


async def test_a_slow_service_is_not_asked_beyond_its_sliding_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent in time arrives late: only from the answer on is it known to have arrived."""
    monkeypatch.setattr(rate_limit, "_WINDOW_SECONDS", 0.5)
    limit = RateLimit(max_rpm=5)
    limit._seconds_a_request = 0.01
    arrivals: list[float] = []

    async def ask(number: int) -> None:
        async with limit.request():
            await asyncio.sleep(0.2 if number < 3 else 0.0)
            arrivals.append(time.monotonic())

    await asyncio.gather(*(ask(number) for number in range(15)))
    for number in range(len(arrivals) - 5):
        assert arrivals[number + 5] - arrivals[number] > 0.49


async def test_a_blocking_coroutine_holds_up_neither_the_loop_nor_the_others(
    file: str, make_manager: MakeManager
) -> None:
    manager = make_manager(custom_reward_function=custom(file, "blocks"), num_workers=4)
    started = time.monotonic()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    first = [asyncio.create_task(manager.score(answer_of(str(number)))) for number in range(4)]
    results = await asyncio.gather(*first)
    ticking.cancel()
    assert time.monotonic() - started < 1.0
    assert ticks > 5
    assert len({result.components["thread"] for result in results}) > 1


async def test_functions_that_do_not_block_stay_on_one_loop(file: str, make_manager: MakeManager) -> None:
    manager = make_manager(custom_reward_function=custom(file, "waits"), num_workers=4)
    threads = []
    for _ in range(10):
        result = await manager.score(answer_of())
        threads.append(result.components["thread"])
    assert len(set(threads)) == 1


async def test_waiting_for_a_place_counts_against_no_deadline(make_manager: MakeManager, tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(
        "import asyncio\nfrom agentverl.rewards.at_once import at_once\n"
        "under_way = 0\n"
        "@at_once(1)\n"
        "async def compute_score(data_source, solution_str, ground_truth):\n"
        "    global under_way\n"
        "    under_way += 1\n"
        "    await asyncio.sleep(0.4)\n"
        "    under_way -= 1\n"
        "    return float(under_way == 0)\n"
    )
    manager = make_manager(custom_reward_function={"path": str(path)}, timeout_seconds=1.0)
    results = await asyncio.gather(*(manager.score(answer_of(str(number))) for number in range(4)))
    assert [result.score for result in results] == [1.0] * 4
    assert most_at_once(code.compute_score) == os.cpu_count()


def block_for(seconds: float) -> None:
    """What a scorer does that computes on the event loop."""
    time.sleep(seconds)


async def test_a_call_moves_on_from_a_loop_that_is_blocked() -> None:
    loops = ScoringLoops(2)

    async def blocks(seconds: float) -> int:
        block_for(seconds)
        return threading.get_ident()

    first = await loops.call(blocks, {"seconds": 0})
    blocked = asyncio.create_task(loops.call(blocks, {"seconds": 1.0}))
    await asyncio.sleep(0.2)
    assert await loops.call(blocks, {"seconds": 0}) != first
    assert not blocked.done()
    assert await blocked == first
    loops.close()


async def test_a_call_that_nobody_waits_for_any_more_is_not_begun() -> None:
    loops, begun = ScoringLoops(1), False

    async def blocks() -> None:
        block_for(1.0)

    async def begins() -> None:
        nonlocal begun
        begun = True

    blocked = asyncio.create_task(loops.call(blocks, {}))
    await asyncio.sleep(0.2)
    late = asyncio.create_task(loops.call(begins, {}))
    await asyncio.sleep(0.1)
    late.cancel()
    await blocked
    await loops.call(asyncio.sleep, {"delay": 0})
    assert not begun
    loops.close()


async def test_a_cancelled_call_ends_on_its_loop() -> None:
    loops, begun, ended = ScoringLoops(1), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def endless() -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.sleep(60)
        finally:
            loop.call_soon_threadsafe(ended.set)

    task = asyncio.create_task(loops.call(endless, {}))
    await begun.wait()
    task.cancel()
    await asyncio.wait_for(ended.wait(), 5)
    loops.close()
