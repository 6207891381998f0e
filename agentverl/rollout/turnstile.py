"""Lets coroutines of one event loop go on one after the other, where many could at once."""

import asyncio
from collections import deque


class Turnstile:
    """First come, first served; between two that pass, the loop looks at its timers and sockets.

    Hundreds of answers that come together would otherwise be worked on in one go, and everything else on the loop,
    deadlines included, would wait until the last of them is through.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns = False

    async def passed(self) -> None:
        """Wait for one's turn."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._turns:
            self._turns = True
            loop.call_soon(self._turn, loop)
        await mine

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # it may have been cancelled
                first.set_result(None)
                break
        self._turns = bool(self._waiting)
        if self._turns:
            loop.call_soon(self._turn, loop)
