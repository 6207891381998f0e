"""Synchronous work in threads: results, errors, and threads that are gone afterwards."""

import asyncio
import os
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


def test_a_call_that_outlives_its_loop_does_not_keep_a_thread_from_others() -> None:
    going_on = threading.Event()

    async def leave_behind() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(blocking.call(going_on.wait, 10), 0.01)

    async def ask_again() -> int:
        return await asyncio.wait_for(blocking.call(lambda: 7), 10)

    asyncio.run(leave_behind())
    going_on.set()
    assert [asyncio.run(ask_again()) for _ in range(20)] == [7] * 20


def test_a_forked_process_has_threads_of_its_own() -> None:
    async def ask() -> int:
        return await asyncio.wait_for(blocking.call(lambda: 7), 10)

    asyncio.run(ask())
    child = os.fork()
    if child == 0:
        os._exit(asyncio.run(ask()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
