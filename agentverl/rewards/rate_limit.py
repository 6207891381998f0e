"""Requests paced so that a service with limits a minute never refuses one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_USED_SHARE = 0.98
"""The rest is for what arrives a little earlier or later than it was sent."""


class RateLimit:
    """Spaces requests evenly; belongs to the event loop that uses it.

    Even spacing keeps every way in which services count: sliding windows, fixed minutes, buckets that fill by the
    second. None is no limit.

    Args:
        max_rpm: requests a minute.
        max_tpm: tokens a minute.
        max_concurrent: requests under way at a time.
    """

    def __init__(
        self, max_rpm: float | None = None, max_tpm: float | None = None, max_concurrent: int | None = None
    ) -> None:
        self._seconds_a_request = 60.0 / (max_rpm * _USED_SHARE) if max_rpm else 0.0
        self._seconds_a_token = 60.0 / (max_tpm * _USED_SHARE) if max_tpm else 0.0
        self._slots = asyncio.Semaphore(max_concurrent) if max_concurrent else None
        self._next_request = 0.0
        self._next_token = 0.0

    @asynccontextmanager
    async def request(self, tokens: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of a request of about so many tokens; the slot is held until the block ends."""
        if self._slots is None:
            await self._wait_for_turn(tokens)
            yield
            return
        async with self._slots:
            await self._wait_for_turn(tokens)
            yield

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
