"""Deadlines that nest: each boundary uses the smaller of its own and what remains of the trajectory's."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")
_CLEANUP_SECONDS = 1.0
_abandoned: set[asyncio.Future[Any]] = set()


class OutOfTimeError(TimeoutError):
    """`bounded` gave up waiting; a TimeoutError of what was awaited is another thing."""


@dataclass(slots=True)
class Deadline:
    """A moment on the monotonic clock, which may be put off; `None` never comes."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """The moment `seconds` from now; `None` means no deadline."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds left, at least 0; `None` without a deadline (what `asyncio.timeout` takes)."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def put_off(self, seconds: float) -> None:
        """Let it come later."""
        if self.at is not None:
            self.at += seconds

    def left_of(self, seconds: float) -> float:
        """The smaller of `seconds` and of those that are left."""
        remaining = self.remaining_seconds
        return seconds if remaining is None else min(seconds, remaining)


async def contained(awaitable: Awaitable[_T]) -> _T:
    """Await code of a plugin: its SystemExit or KeyboardInterrupt would end the event loop, and all episodes with it.

    Raises:
        RuntimeError: it raised one of these.
    """
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"it raised {error!r}; an error of another type says what is wrong") from error


async def bounded(awaitable: Awaitable[_T], seconds: float | None) -> _T:
    """Await for at most `seconds`; then, or when cancelled, cancel what is awaited and give it a moment to clean up.

    Unlike `asyncio.timeout` it also returns when what is awaited swallows its cancellation: that is left behind.

    Raises:
        OutOfTimeError: the time was up.
    """
    task = asyncio.get_running_loop().create_task(contained(awaitable))
    try:
        await _settled(task, seconds)
    except asyncio.CancelledError:
        await give_up(task)
        raise
    if not task.done():
        await give_up(task)
        raise OutOfTimeError(f"no answer within {seconds:.3g} seconds")
    return task.result()


async def _settled(task: asyncio.Future[Any], seconds: float | None) -> None:
    """What `asyncio.wait` does for several tasks, for one in half the time: every call of a tool waits so."""
    loop = asyncio.get_running_loop()
    settled = loop.create_future()

    def settle(_: Any = None) -> None:
        if not settled.done():
            settled.set_result(None)

    task.add_done_callback(settle)
    timer = None if seconds is None else loop.call_later(seconds, settle)
    try:
        await settled
    finally:
        task.remove_done_callback(settle)
        if timer is not None:
            timer.cancel()


def left_behind() -> set[asyncio.Future[Any]]:
    """Tasks that swallowed their cancellation; nothing need wait for them any more."""
    return set(_abandoned)


async def give_up(task: asyncio.Future[Any]) -> None:
    """Cancel a task, give it a moment to clean up, and leave it behind where it goes on all the same."""
    task.cancel()
    _abandoned.add(task)
    task.add_done_callback(_forget)
    await asyncio.wait({task}, timeout=_CLEANUP_SECONDS)


def _forget(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as seen: nobody waits for it any more
