"""Synchronous work in threads: results, errors, and threads that are gone afterwards."""

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
