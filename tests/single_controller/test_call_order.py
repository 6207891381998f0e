"""Calls begin as they were sent, in whatever order they come."""

import asyncio
import random

from agentverl.single_controller.call_order import CallOrder, Turn


async def test_calls_begin_as_each_caller_sent_them() -> None:
    order, begun = CallOrder(), []

    async def call(turn: Turn) -> None:
        await order.come(turn)
        begun.append(turn)
        order.pass_on(turn)

    turns = [Turn(caller, number) for caller in ("a", "b") for number in range(20)]
    random.Random(0).shuffle(turns)
    await asyncio.gather(*map(call, turns))
    for caller in ("a", "b"):
        assert [turn.number for turn in begun if turn.caller == caller] == list(range(20))


async def test_a_call_waits_for_one_that_has_not_come_yet() -> None:
    order = CallOrder()
    later = asyncio.ensure_future(order.come(Turn("a", 1)))
    await asyncio.sleep(0.01)
    assert not later.done()
    await order.come(Turn("a", 0))
    order.pass_on(Turn("a", 0))
    await later
