"""An interpreter that ends while our threads work, without anything being closed."""

import subprocess
import sys
import time
from textwrap import dedent

import pytest

LOOP = """
    import asyncio, time, torch
    from agentverl import blocking
    from agentverl.loop_thread import LoopThread

    def compute():
        for _ in range(20):
            matrix @ matrix

    async def alone():
        while True:
            compute()
            await asyncio.sleep(0)

    async def in_another():
        while True:
            await blocking.call(compute)

    async def hangs():
        await blocking.call(time.sleep, 60)

    matrix, thread = torch.randn(300, 300), LoopThread()
    for _ in range(3):
        thread.start({work}())
    time.sleep(0.3)
    print("ends")
"""
SERVER = """
    import time
    from agentverl.loop_thread import LoopThread
    from agentverl.rollout.hf.replica import HFReplica
    from tests.rollout.hf.tiny_models import Reference

    async def play(number):
        for turn in range(10**6):
            await replica.generate(f"{number}-{turn}", prompt_ids=[1, 2, 3], sampling_params={"max_tokens": 30})

    reference, thread = Reference.make("qwen2"), LoopThread()
    replica = HFReplica(reference.config)
    thread.run(replica.init_standalone())
    thread.run(replica.update_weights(reference.weights(), 0))
    playing = [thread.start(play(number)) for number in range(8)]
    time.sleep(0.5)
    assert not any(future.done() for future in playing)
    print("ends")
"""
RAY = """
    import asyncio, time
    from agentverl.loop_thread import LoopThread
    from agentverl.single_controller.ray_cluster import RayInit, connect

    async def asks():
        import ray
        while ray.is_initialized():
            await asyncio.sleep(0)
        print("after Ray")

    thread = LoopThread()
    connect(RayInit(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20))
    thread.start(asks())
    time.sleep(0.3)
    print("ends")
"""


def ending(code: str) -> tuple[int, str, str]:
    """The exit code of a program, and what it printed."""
    command = [sys.executable, "-c", dedent(code)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    "code", [LOOP.format(work="alone"), LOOP.format(work="in_another"), SERVER], ids=["loop", "blocking", "hf server"]
)
def test_threads_inside_torch_abort_nothing(code: str) -> None:
    assert ending(code) == (0, "ends\n", "")


def test_the_loop_ends_before_ray_does() -> None:
    assert ending(RAY)[:2] == (0, "ends\n")


def test_a_call_that_hangs_holds_up_the_end_for_a_moment() -> None:
    before = time.monotonic()
    assert ending(LOOP.format(work="hangs")) == (0, "ends\n", "")
    assert time.monotonic() - before < 30
