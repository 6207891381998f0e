"""The order of calls: Ray begins those of an actor with async methods as they come, which is not as they were sent."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class Turn(NamedTuple):
    """Where a call stands among those that one caller sent to one process."""

    caller: str
    number: int
    """From 0 on, without gaps."""


class CallOrder:
    """Lets the calls of each caller begin as they were sent; for one event loop."""

    def __init__(self) -> None:
        self._next: defaultdict[str, int] = defaultdict(int)
        self._waiting: dict[Turn, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def beginning(self, turn: Turn) -> AsyncIterator[None]:
        """Entered once all earlier calls have begun; at its end, however it ends, the next one may."""
        if turn.number > self._next[turn.caller]:
            waiting = self._waiting[turn] = asyncio.get_running_loop().create_future()
            await waiting
        try:
            yield
        finally:
            self._next[turn.caller] = turn.number + 1
            following = self._waiting.pop(Turn(turn.caller, turn.number + 1), None)
            if following is not None:
                following.set_result(None)
