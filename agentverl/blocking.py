"""Calls that block (synchronous tools and rewards) leave the event loop: each has a daemon thread, and is counted."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from agentverl.daemon_threads import DaemonThread

_T = TypeVar("_T")

inline = False
"""Set by `trainer.debug=true`: blocking calls run where they are made, so that breakpoints hold."""

MOST_ABANDONED = 512
"""Calls that nobody waits for any more and that still run; beyond them no further call is begun."""

IDLE_SECONDS = 0.02
"""How long a thread waits for its next call: they come in bursts, and starting a thread takes longer than most of them.

Not longer, because of what `in_passing_thread` says of threads that computed.
"""

_running: dict[int, str] = {}
_abandoned: set[int] = set()
_numbers = itertools.count()


def running() -> dict[int, str]:
    """The blocking calls that have not returned yet, with their names; abandoned ones stay until they end."""
    return dict(_running)


async def call(function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Run a synchronous function off the event loop and await its result.

    Threads are used again, so what a function sets for its thread (such as torch's gradient mode) it has to set back.
    A cancelled caller abandons the thread, which is a daemon and so never keeps the process alive; the default executor
    is not used because hung calls would fill it for everybody.

    Raises:
        RuntimeError: too many abandoned calls still run.
    """
    if inline:
        return function(*args, **kwargs)
    _refuse_too_many()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()
    number = next(_numbers)
    name = getattr(function, "__qualname__", repr(function))

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> Callable[[], None]:
        threading.current_thread().name = f"blocking-{number}-{name}"
        result: Any = None
        error: Exception | None = None
        try:
            result = function(*args, **kwargs)
        except StopIteration as stop:  # a future refuses StopIteration and would never be settled
            error = RuntimeError(f"{name} raised StopIteration({stop.value!r})")
        except Exception as caught:  # carried to the awaiting task
            error = caught
        except BaseException as caught:  # SystemExit and its like would end the event loop of who awaits it
            error = RuntimeError(f"{name} raised {caught!r}")
        finally:
            _running.pop(number, None)
            _abandoned.discard(number)
        return partial(_report, loop, settle, result, error)

    _running[number] = name
    _threads.run(work)
    try:
        return await future
    except asyncio.CancelledError:
        _abandoned.add(number)
        if number not in _running:  # it has ended since, and may have looked before it was added
            _abandoned.discard(number)
        raise


def _report(loop: asyncio.AbstractEventLoop, settle: Callable[..., None], *outcome: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
        loop.call_soon_threadsafe(settle, *outcome)


Work = Callable[[], Callable[[], None]]
"""Something to do, which gives what reports it."""


class _Threads:
    """Daemon threads that do one work after the other, as many as there are works at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Work]] = []

    def run(self, work: Work) -> None:
        """Let a thread that waits do it, else a new one."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(work)
        else:
            DaemonThread(partial(self._serve, work), "blocking").start()

    def _serve(self, work: Work) -> None:
        inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        while True:
            report = Context().run(work)
            with self._lock:
                self._idle.append(inbox)  # first, as who hears of the result may have the next call ready
            report()
            del work, report
            try:
                work = inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                work = inbox.get()  # it was taken at the last moment

    def forget(self) -> None:
        """Forget those that another process has, after a fork."""
        self._lock, self._idle = threading.Lock(), []


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.forget)


def _refuse_too_many() -> None:
    if len(_abandoned) < MOST_ABANDONED:
        return
    names = Counter(name for number, name in running().items() if number in _abandoned)
    for worst, count in names.most_common(1):
        raise RuntimeError(
            f"{names.total()} calls that ran out of time still run, {count} of them of {worst}, and no more are begun; "
            "make it end by itself"
        )


def in_passing_thread(function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Run a function in a thread that ends with it, and wait for its result.

    For what computes much beside a rollout server in the same process: OpenMP keeps a team of threads for each thread
    that computed, for as long as that lives, and with more of them than processors all fall asleep between two
    operations, which makes the server's short ones a third slower.
    """
    if inline:
        return function(*args, **kwargs)
    outcome: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def work() -> None:
        try:
            outcome.set_result(function(*args, **kwargs))
        except BaseException as caught:  # raised where the result is waited for
            outcome.set_exception(caught)

    thread = DaemonThread(work, f"passing-{getattr(function, '__name__', '')}")
    thread.start()
    result = outcome.result()
    thread.join()
    return result
