"""A callback that blocks a loop is named, and many short ones are not, on either kind of loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from agentverl.stall_watch import StallWatch

LOOPS = pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])


def said_while(make: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        watch = StallWatch(asyncio.get_running_loop(), 0.1)
        await asyncio.sleep(0.1)  # it has knocked
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


@LOOPS
def test_many_short_callbacks_in_a_row_are_no_stall(
    make: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def short() -> None:
        block(0.02)

    async def crowd() -> None:
        await asyncio.gather(*(short() for _ in range(30)))

    caplog.set_level(logging.WARNING)
    said_while(make, crowd)
    assert caplog.text == ""


@LOOPS
def test_one_task_of_many_short_steps_is_no_stall(
    make: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def steps() -> None:
        for _ in range(30):
            block(0.02)
            await asyncio.sleep(0)

    caplog.set_level(logging.WARNING)
    said_while(make, steps)
    assert caplog.text == ""
