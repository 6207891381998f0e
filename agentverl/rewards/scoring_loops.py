"""Event loops for asynchronous reward functions, so that one that blocks holds up no episode."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agentverl.deadlines import contained
from agentverl.loop_thread import LoopThread


class _Worker:
    """One loop in a thread of its own, and how many calls it has not begun yet."""

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(name)
        self._unstarted: set[object] = set()
        self._lock = threading.Lock()

    @property
    def backlog(self) -> int:
        return len(self._unstarted)

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        token = object()
        self._note(token, begun=False)

        async def work() -> Any:
            self._note(token, begun=True)
            return await contained(function(**arguments))

        try:
            return await asyncio.wrap_future(self._thread.start(work()))
        finally:
            self._note(token, begun=True)

    def _note(self, token: object, *, begun: bool) -> None:
        with self._lock:
            (self._unstarted.discard if begun else self._unstarted.add)(token)

    def close(self) -> None:
        self._thread.close(1.0)


class ScoringLoops:
    """At most `most` loops, started when needed.

    A call goes to the loop with the fewest calls that have not begun, which is the first for as long as no function
    blocks: clients that functions keep between calls are bound to a loop, and stay on theirs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: list[_Worker] = []

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Await a coroutine function on one of the loops; cancelling the wait cancels it there."""
        return await self._least_loaded().call(function, arguments)

    def _least_loaded(self) -> _Worker:
        best = min(self._workers, key=lambda worker: worker.backlog, default=None)
        if best is None or (best.backlog and len(self._workers) < self._most):
            best = _Worker(f"rewards-{len(self._workers)}")
            self._workers.append(best)
        return best

    def close(self) -> None:
        """End the loops; a function that still blocks one is left behind in its daemon thread."""
        while self._workers:
            self._workers.pop().close()
