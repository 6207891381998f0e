"""Coroutines that are driven from synchronous code."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agentverl.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


async def _goes_on() -> None:
    await asyncio.sleep(60)


async def _fails() -> None:
    raise ValueError("broken")


def test_what_takes_too_long_is_cancelled(thread: LoopThread) -> None:
    with pytest.raises(TimeoutError):
        thread.run(_goes_on(), 0.01)


def test_what_does_not_end_hides_no_error(thread: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    def breaks_down() -> None:
        with ExitStack() as closing:
            closing.callback(lambda: thread.end(_goes_on(), "the server", 0.01))
            raise KeyError("the first")

    with caplog.at_level(logging.WARNING), pytest.raises(KeyError, match="the first"):
        breaks_down()
    assert "the server did not end within 0.01 seconds and was left behind" in caplog.text


def test_an_error_of_what_ends_is_raised(thread: LoopThread) -> None:
    with pytest.raises(ValueError, match="broken"):
        thread.end(_fails(), "the server", 5.0)
