"""An event loop in a thread of its own, for synchronous code that drives asynchronous rooms."""

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from agentverl.daemon_threads import DaemonThread
from agentverl.deadlines import left_behind
from agentverl.stall_watch import StallWatch

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines on one loop; `close` cancels what is left and ends the thread.

    With `stall_seconds`, a coroutine that blocks the loop for longer is named in a warning.
    """

    def __init__(self, name: str = "rollouts", *, stall_seconds: float | None = 1.0) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        # First, so that it knows the thread before anything can block it.
        self._watch = None if stall_seconds is None else StallWatch(self.loop, stall_seconds)
        self._thread = DaemonThread(self._work, name, self._stop)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A task raised it, which has failed by that; the others must not wait for a loop that is gone.
                logger.warning("%r of a task left the event loop, which goes on", error)

    def _stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed this moment
            self.loop.call_soon_threadsafe(self.loop.stop)

    @property
    def closed(self) -> bool:
        return self.loop.is_closed()

    def start(self, coroutine: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        """Start a coroutine on the loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout_seconds: float | None = None) -> _T:
        """Run a coroutine on the loop and wait for its result; an interrupted wait cancels it.

        Raises:
            TimeoutError: it took longer than `timeout_seconds`; it is cancelled.
        """
        future = self.start(coroutine)
        try:
            return future.result(timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def end(self, coroutine: Coroutine[Any, Any, None], what: str, timeout_seconds: float) -> None:
        """Run what closes something; what does not end in time is warned of and left behind.

        While an error is on its way out, a TimeoutError raised here would take its place.
        """
        try:
            self.run(coroutine, timeout_seconds)
        except concurrent.futures.TimeoutError:
            logger.warning("%s did not end within %g seconds and was left behind", what, timeout_seconds)

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Cancel all tasks, give them time to clean up, end the thread; may be called twice."""
        if self.closed:
            return
        if self._watch is not None:
            self._watch.stop()
        try:
            self.start(_cancel_all(timeout_seconds)).result(timeout_seconds + 5.0)
        except concurrent.futures.TimeoutError:
            return  # a task blocks the loop: the thread is a daemon and ends with the process
        self._stop()
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self.loop.close()


async def _cancel_all(timeout_seconds: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task(), *left_behind()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_seconds)
    await asyncio.get_running_loop().shutdown_asyncgens()
