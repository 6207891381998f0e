"""Calls begin as they were sent, in whatever order they come."""

import asyncio
import random

import pytest

from agentverl.single_controller.call_order import CallOrder, Turn


async def test_calls_begin_as_each_caller_sent_them() -> None:
    order, begun = CallOrder(), []

    async def call(turn: Turn) -> None:
        async with order.beginning(turn):
            begun.append(turn)

    turns = [Turn(caller, number) for caller in ("a", "b") for number in range(20)]
    random.Random(0).shuffle(turns)
    await asyncio.gather(*map(call, turns))
    for caller in ("a", "b"):
        assert [turn.number for turn in begun if turn.caller == caller] == list(range(20))


async def test_a_call_waits_for_one_that_has_not_come_yet_even_if_that_fails() -> None:
    order = CallOrder()

    async def later() -> None:
        async with order.beginning(Turn("a", 1)):
            pass

    waiting = asyncio.ensure_future(later())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    with pytest.raises(RuntimeError, match="it does not begin"):
        async with order.beginning(Turn("a", 0)):
            raise RuntimeError("it does not begin")
    await waiting
