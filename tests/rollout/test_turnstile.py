"""Many that could go on at once pass a few at a time, and timers come in between."""

import asyncio
import time

from agentverl.rollout.turnstile import Turnstile


async def test_they_pass_in_order_and_a_timer_is_not_late() -> None:
    turnstile, passed, late = Turnstile(), [], []

    async def work(number: int) -> None:
        await turnstile.passed()
        passed.append(number)
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:  # computes, as a turn's work does
            pass

    async def tick() -> None:
        for _ in range(10):
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            late.append(time.perf_counter() - due)

    ticking = asyncio.ensure_future(tick())
    await asyncio.gather(*(work(number) for number in range(50)))
    await ticking
    assert passed == list(range(50))
    assert sorted(late)[5] < 0.02


async def test_short_ones_pass_several_at_a_time() -> None:
    turnstile, looks = Turnstile(), 0
    loop = asyncio.get_running_loop()

    def look() -> None:
        nonlocal looks
        looks += 1
        loop.call_soon(look)

    look()
    await asyncio.gather(*(turnstile.passed() for _ in range(200)))
    assert looks < 100


async def test_who_is_cancelled_while_waiting_holds_nobody_up() -> None:
    turnstile = Turnstile()
    tasks = [asyncio.ensure_future(turnstile.passed()) for _ in range(5)]
    await asyncio.sleep(0)
    for task in tasks[:4]:
        task.cancel()
    await asyncio.wait_for(tasks[4], 5)
    await asyncio.wait_for(turnstile.passed(), 5)
