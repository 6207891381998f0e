"""Synchronous work in threads: results, errors, and threads that are gone afterwards."""

import asyncio
import threading

import pytest

from agentverl import blocking


def test_a_passing_thread_ends_with_the_function_that_it_ran() -> None:
    thread = blocking.in_passing_thread(threading.current_thread)
    assert thread is not threading.current_thread()
    assert not thread.is_alive()


def test_what_a_function_raises_in_a_passing_thread_reaches_who_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        blocking.in_passing_thread(divmod, 1, 0)


def test_breakpoints_hold_because_nothing_leaves_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "inline", True)
    assert blocking.in_passing_thread(threading.current_thread) is threading.current_thread()


async def test_calls_one_after_the_other_share_a_thread() -> None:
    assert await blocking.call(threading.get_ident) == await blocking.call(threading.get_ident)


async def test_calls_at_the_same_time_have_a_thread_each() -> None:
    barrier = threading.Barrier(3, timeout=10)
    await asyncio.gather(*(blocking.call(barrier.wait) for _ in range(3)))


async def test_a_thread_without_calls_ends() -> None:
    thread = await blocking.call(threading.current_thread)
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    assert await blocking.call(lambda: 7) == 7


async def test_no_call_is_lost_where_threads_are_about_to_end() -> None:
    for number in range(200):
        assert await asyncio.wait_for(blocking.call(lambda value: value, number), 10) == number
        if number % 10 == 0:
            await asyncio.sleep(blocking.IDLE_SECONDS * (0.9 + number / 1000))
