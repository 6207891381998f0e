"""Names in a warning the coroutine that blocks an event loop, on which everybody else then waits."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType

logger = logging.getLogger(__name__)


class StallWatch:
    """A thread that expects a sign of life from the loop's thread, and looks at its stack when none comes.

    Each place that blocks is named once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_ident: int, stall_seconds: float) -> None:
        self._loop = loop
        self._thread_ident = thread_ident
        self._stall_seconds = stall_seconds
        self._named: set[str] = set()
        self._alive_at = time.monotonic()
        self._stopped = threading.Event()
        loop.call_soon_threadsafe(self._beat)
        threading.Thread(target=self._watch, name="stall-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        self._alive_at = time.monotonic()
        if not self._stopped.is_set():
            self._loop.call_later(self._stall_seconds / 4, self._beat)

    def _watch(self) -> None:
        while not self._stopped.wait(self._stall_seconds / 4):
            silent = time.monotonic() - self._alive_at
            if silent > self._stall_seconds:
                self._name_culprit(silent)

    def _name_culprit(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread_ident)
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
        code = frame.f_code
        name = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
        if code.co_flags & 0x80:  # CO_COROUTINE
            return name
        if fallback is None and not name.startswith(("asyncio.", "selectors.", "threading.")):
            fallback = name
        frame = frame.f_back
    return fallback
