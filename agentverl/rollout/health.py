"""A look from time to time at what lives elsewhere, so that whatever dies is noticed while nobody asks it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

_LOOK_SECONDS = 10.0


async def look_after(looks: Callable[[], Iterable[Awaitable[object]]]) -> None:
    """Take the looks that `looks` gives, all at once, again and again; ends when it is cancelled."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.gather(*looks())
