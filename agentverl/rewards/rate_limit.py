"""Requests paced so that a service with limits a minute never refuses one."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

_WINDOW_SECONDS = 60.0
_USED_SHARE = 0.98
"""The rest is for what arrives a little earlier or later than it was sent."""


class RateLimit:
    """Spaces requests evenly; belongs to the event loop that uses it.

    Even spacing keeps fixed minutes and buckets that fill by the second. For windows that slide, no more requests are
    begun than a minute allows, counting from when each was answered: until then it may have arrived just now, on a busy
    machine also those that were sent in time. None is no limit.

    Args:
        max_rpm: requests a minute.
        max_tpm: tokens a minute.
        max_concurrent: requests under way at a time.
    """

    def __init__(
        self, max_rpm: float | None = None, max_tpm: float | None = None, max_concurrent: int | None = None
    ) -> None:
        self._max_rpm = max_rpm
        self._seconds_a_request = 60.0 / (max_rpm * _USED_SHARE) if max_rpm else 0.0
        self._seconds_a_token = 60.0 / (max_tpm * _USED_SHARE) if max_tpm else 0.0
        self._slots = asyncio.Semaphore(max_concurrent) if max_concurrent else None
        self._next_request = 0.0
        self._next_token = 0.0
        self._under_way = 0
        self._answered: deque[float] = deque()

    @asynccontextmanager
    async def request(self, tokens: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of a request of about so many tokens; the slot is held until the block ends."""
        async with self._slots or nullcontext():
            await self._wait_for_turn(tokens)
            self._under_way += 1
            try:
                yield
            finally:
                self._under_way -= 1
                if self._max_rpm is not None:
                    self._answered.append(time.monotonic())

    def correct(self, estimated: int, used: int) -> None:
        """Take into account that a request used other than the estimated number of tokens."""
        self._next_token += (used - estimated) * self._seconds_a_token

    def hold_back(self, seconds: float) -> None:
        """Send nothing for so long: the service refused a request and asked for it."""
        self._next_request = max(self._next_request, time.monotonic() + seconds)

    async def _wait_for_turn(self, tokens: int) -> None:
        now = time.monotonic()
        turn = max(now, self._next_request, self._next_token)
        self._next_request = turn + self._seconds_a_request
        self._next_token = turn + tokens * self._seconds_a_token
        if turn > now:
            await asyncio.sleep(turn - now)
        while True:
            wait = self._seconds_until_room()
            if wait <= 0:
                return
            await asyncio.sleep(wait)

    def _seconds_until_room(self) -> float:
        if self._max_rpm is None:
            return 0.0
        now = time.monotonic()
        while self._answered and now - self._answered[0] > _WINDOW_SECONDS:
            self._answered.popleft()
        if self._under_way + len(self._answered) < max(1.0, self._max_rpm):
            return 0.0
        oldest = self._answered[0] if self._answered else now
        return max(0.01, min(oldest + _WINDOW_SECONDS - now, 1.0))
