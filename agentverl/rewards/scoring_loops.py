"""Event loops for asynchronous reward functions, so that one that blocks holds up no episode and no other function."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from agentverl.deadlines import contained
from agentverl.loop_thread import LoopThread

_MOVES_ON_SECONDS = 0.02
"""After which a call that its loop has not begun is offered to another one as well."""


class _Offer:
    """A call that the first loop to come to it makes; the others leave it alone."""

    def __init__(self, function: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> None:
        self._function = function
        self._arguments = arguments
        self._taken = threading.Lock()

    @property
    def is_taken(self) -> bool:
        return self._taken.locked()

    def withdraw(self) -> None:
        """Nobody waits any more: a loop that comes to it later need not begin."""
        self._taken.acquire(blocking=False)

    async def take(self) -> tuple[bool, Any]:
        """Whether this loop came first, and what the function gave."""
        if not self._taken.acquire(blocking=False):
            return False, None
        return True, await contained(self._function(**self._arguments))


class _Worker:
    """One loop in a thread of its own, and how many offers it has not come to yet."""

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(name)
        self._unseen: set[_Offer] = set()

    @property
    def backlog(self) -> int:
        return len(self._unseen)

    def receive(self, offer: _Offer) -> "asyncio.Future[tuple[bool, Any]]":
        self._unseen.add(offer)
        self._thread.loop.call_soon_threadsafe(self._unseen.discard, offer)
        return asyncio.wrap_future(self._thread.start(offer.take()))

    def close(self) -> None:
        self._thread.close(1.0)


class ScoringLoops:
    """At most `most` loops, started when needed.

    A call goes to the loop with the fewest calls that it has not come to, which is the first for as long as no function
    blocks: clients that functions keep between calls are bound to a loop, and stay on theirs. Where a function blocks
    that loop just then, the call moves on to another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: list[_Worker] = []

    async def call(self, function: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:
        """Await a coroutine function on one of the loops; cancelling the wait cancels it there."""
        offer = _Offer(function, arguments)
        answers: dict[_Worker, asyncio.Future[tuple[bool, Any]]] = {}
        try:
            while True:
                seconds = None
                if not offer.is_taken and len(answers) < self._most:
                    worker = self._least_loaded(answers)
                    answers[worker] = worker.receive(offer)
                    seconds = _MOVES_ON_SECONDS
                waiting = [answer for answer in answers.values() if not answer.done()]
                done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                for is_mine, value in (answer.result() for answer in done):
                    if is_mine:
                        return value
        finally:
            offer.withdraw()
            for answer in answers.values():
                answer.cancel()

    def _least_loaded(self, asked: Collection[_Worker]) -> _Worker:
        """The one to offer a call to that those in `asked` have not begun."""
        left = [worker for worker in self._workers if worker not in asked]
        best = min(left, key=lambda worker: worker.backlog, default=None)
        if best is None or (best.backlog and len(self._workers) < self._most):
            best = _Worker(f"rewards-{len(self._workers)}")
            self._workers.append(best)
        return best

    def close(self) -> None:
        """End the loops; a function that still blocks one is left behind in its daemon thread."""
        while self._workers:
            self._workers.pop().close()
