"""SystemExit and KeyboardInterrupt of plugins: they fail what raised them, and never take the event loop along."""

import asyncio
import contextlib
import logging
import threading
import time
from typing import Any

import pytest

from agentverl import blocking
from agentverl.data.chat_template import ChatTemplate
from agentverl.deadlines import bounded, left_behind
from agentverl.errors import TrainingStoppedError
from agentverl.loop_thread import LoopThread
from agentverl.rollout.episode import Episode, EpisodeResult
from tests.rollout.test_rollouts import Stub, playing, rows


def _exit() -> None:
    raise SystemExit(3)


async def _exit_later() -> None:
    await asyncio.sleep(0)
    raise SystemExit(3)


async def test_a_plain_function_that_exits_raises_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"_exit raised SystemExit\(3\)"):
        await blocking.call(_exit)


async def test_a_coroutine_that_exits_raises_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"it raised SystemExit\(3\)"):
        await bounded(_exit_later(), 1.0)


def test_the_loop_of_a_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    thread = LoopThread(stall_seconds=None)
    try:
        with pytest.raises(SystemExit):
            thread.run(_exit_later(), 5.0)
        assert thread.run(asyncio.sleep(0, "here"), 5.0) == "here"
        assert "SystemExit(3) of a task left the event loop, which goes on" in caplog.text
    finally:
        thread.close()


class Exiting(Stub):
    """A runner that is not as careful as ours."""

    async def run(self, episode: Episode, *_: Any) -> EpisodeResult:
        raise SystemExit(3)


def test_who_waits_for_groups_hears_of_it(template: ChatTemplate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with playing(template, Exiting()) as (rollouts, _):
        rollouts.submit(rows(1), 1)
        with pytest.raises(TrainingStoppedError, match=r"raised SystemExit\(3\)"):
            rollouts.next_groups(1)


def test_closing_does_not_wait_for_what_swallowed_its_cancellation() -> None:
    thread = LoopThread(stall_seconds=None)

    async def stubborn() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    # What earlier tests of the same process left behind is not this one's.
    before = set(left_behind())

    async def give_up() -> int:
        with pytest.raises(TimeoutError):
            await bounded(stubborn(), 0.01)
        return len(set(left_behind()) - before)

    assert thread.run(give_up(), 5.0) == 1
    started = time.monotonic()
    (task,) = set(left_behind()) - before
    thread.close(timeout_seconds=20.0)
    assert time.monotonic() - started < 5
    assert not task.done()


async def test_calls_that_were_given_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "MOST_ABANDONED", 2)
    gate = threading.Event()

    def hang() -> None:
        gate.wait(5)

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await bounded(blocking.call(hang), 0.01)
    with pytest.raises(RuntimeError, match=r"2 calls that ran out of time still run, 2 of them of .*hang"):
        await blocking.call(hang)
    gate.set()
    for _ in range(500):
        if not any("hang" in name for name in blocking.running().values()):
            break
        await asyncio.sleep(0.01)
    assert await blocking.call(lambda: 7) == 7
