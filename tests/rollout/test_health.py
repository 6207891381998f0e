"""Looks at what lives elsewhere."""

import asyncio
import logging
from collections.abc import Awaitable, Iterator

import pytest

from agentverl.rollout.health import look_after


async def test_a_look_that_fails_ends_neither_the_others_nor_those_to_come(caplog: pytest.LogCaptureFixture) -> None:
    seen, seen_often = 0, asyncio.Event()

    async def fails() -> None:
        raise KeyError("no such server")

    async def sees() -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            seen_often.set()

    def looks() -> Iterator[Awaitable[None]]:
        return iter([fails(), sees()])

    with caplog.at_level(logging.WARNING):
        watch = asyncio.ensure_future(look_after(looks, seconds=0.001))
        await asyncio.wait_for(seen_often.wait(), 10)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert watch.cancelled()
    assert caplog.text.count("a look at what runs elsewhere failed") == 1
    assert "no such server" in caplog.text
