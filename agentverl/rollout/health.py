"""A look from time to time at what lives elsewhere, so that whatever dies is noticed while nobody asks it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0


async def look_after(looks: Callable[[], Iterable[Awaitable[object]]], seconds: float = _LOOK_SECONDS) -> None:
    """Take the looks that `looks` gives, all at once, every so many seconds; ends when it is cancelled.

    What a look raises is told once and ends none of the others, nor those to come.
    """
    told: set[str] = set()
    while True:
        await asyncio.sleep(seconds)
        for result in await asyncio.gather(*looks(), return_exceptions=True):
            if isinstance(result, Exception) and repr(result) not in told:
                told.add(repr(result))
                logger.warning("a look at what runs elsewhere failed; it is looked at again", exc_info=result)
