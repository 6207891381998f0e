"""A callback that blocks a loop is named, and many short ones are not, on either kind of loop."""

import asyncio
import gc
import logging
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from agentverl.loop_thread import LoopThread
from agentverl.stall_watch import StallWatch

LOOPS = pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])


def said_while(
    make: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Coroutine[Any, Any, None]], seconds: float = 0.1
) -> None:
    async def run() -> None:
        watch = StallWatch(asyncio.get_running_loop(), 0.1)
        await asyncio.sleep(seconds)
        await asyncio.ensure_future(work())
        watch.stop()

    loop = make()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def block(seconds: float) -> None:
    time.sleep(seconds)


async def greedy() -> None:
    block(0.4)


@LOOPS
def test_a_coroutine_that_blocks_is_named_with_its_place(
    make: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    said_while(make, greedy)
    assert caplog.text.count("greedy has blocked the event loop") == 1
    assert "block(0.4)" in caplog.text


async def short() -> None:
    block(0.02)


async def crowd() -> None:
    await asyncio.gather(*(short() for _ in range(30)))


async def steps() -> None:
    for _ in range(30):
        block(0.02)
        await asyncio.sleep(0)


@LOOPS
@pytest.mark.parametrize("work", [crowd, steps])
def test_many_short_callbacks_in_a_row_are_no_stall(
    make: Callable[[], asyncio.AbstractEventLoop],
    work: Callable[[], Coroutine[Any, Any, None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    said_while(make, work)
    assert caplog.text == ""


@LOOPS
def test_what_blocks_from_the_start_is_named(
    make: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    said_while(make, greedy, seconds=0.0)
    assert caplog.text.count("greedy has blocked the event loop") == 1


@LOOPS
def test_nothing_of_what_it_saw_is_kept(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    class Large:
        pass

    seen: list[weakref.ref[Large]] = []

    async def holding() -> None:
        large = Large()
        seen.append(weakref.ref(large))
        block(0.2)

    async def work() -> None:
        await asyncio.ensure_future(holding())
        await asyncio.sleep(0.15)
        gc.collect()
        assert seen[0]() is None

    said_while(make, work)


def test_a_thread_that_is_blocked_at_once_is_named(caplog: pytest.LogCaptureFixture) -> None:
    thread = LoopThread(stall_seconds=0.1)
    thread.run(greedy())
    thread.close()
    assert "greedy has blocked the event loop" in caplog.text
