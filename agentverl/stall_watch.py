"""Names in a warning the coroutine that blocks an event loop, on which everybody else then waits."""

import asyncio
import contextlib
import inspect
import logging
import sys
import threading
import time
import traceback
from types import FrameType

from agentverl import plugins

logger = logging.getLogger(__name__)


class StallWatch:
    """A thread that knocks at a loop from time to time: where no answer comes, is it still in the same callback?

    Many short callbacks in a row are no stall, however long they take together. Each place that blocks is named once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._named: set[str] = set()
        self._stopped = threading.Event()
        self._answered = threading.Event()
        self._thread_ident: int | None = None
        self._base: FrameType | None = None
        """The frame that calls callbacks, of a loop that is not written in Python."""
        loop.call_soon_threadsafe(self._answer)
        threading.Thread(target=self._watch, name="stall-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        callback, since = None, 0.0
        while not self._stopped.wait(self._stall_seconds / 4) and not self._loop.is_closed():
            if self._answered.is_set():
                callback = None
                self._answered.clear()
                with contextlib.suppress(RuntimeError):  # the loop was closed this moment
                    self._loop.call_soon_threadsafe(self._answer)
            else:
                callback, since = self._look(callback, since)

    def _look(self, before: FrameType | None, since: float) -> tuple[FrameType | None, float]:
        """What the loop runs, and since when; its place is named where that is too long."""
        frame = sys._current_frames().get(self._thread_ident or 0)
        current = self._callback(frame)
        if current is None or current is not before:
            return current, time.monotonic()
        if time.monotonic() - since >= self._stall_seconds:
            self._name(frame, time.monotonic() - since)
        return current, since

    def _answer(self) -> None:
        self._thread_ident, self._base = threading.get_ident(), sys._getframe().f_back
        self._answered.set()

    def _callback(self, frame: FrameType | None) -> FrameType | None:
        """The outermost frame of the callback that the loop runs; None while the loop waits."""
        while frame is not None and (caller := frame.f_back) is not None:
            if caller is self._base or caller.f_code.co_qualname == "Handle._run":
                return frame
            frame = caller
        return None

    def _name(self, frame: FrameType | None, seconds: float) -> None:
        place = _place(frame)
        if place is None or place in self._named:
            return
        self._named.add(place)
        logger.warning(
            "%s has blocked the event loop for %.1f s, and all episodes with it; await it, or make it a plain function "
            "that runs off the loop. It stands at:\n%s",
            place,
            seconds,
            "".join(traceback.format_stack(frame)[-6:]).rstrip(),
        )


def _place(frame: FrameType | None) -> str | None:
    """The innermost coroutine on the stack, else the innermost function that is not asyncio's own."""
    fallback = None
    while frame is not None:
        name = f"{plugins.written_name(frame.f_globals.get('__name__', '?'))}.{frame.f_code.co_qualname}"
        if frame.f_code.co_flags & inspect.CO_COROUTINE:
            return name
        if fallback is None and not name.startswith(("asyncio.", "selectors.", "threading.")):
            fallback = name
        frame = frame.f_back
    return fallback
