"""A scorer that hangs, explodes or dies costs its process and nothing else."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentverl.rewards.process_pool import ProcessPool, ScorerExhaustedError, ScorerFailedError

MODULE = """
import os, sys, time

def run(do, value=None):
    if do == "echo":
        print("noise on standard output")
        return value
    if do == "pid":
        return os.getpid()
    if do == "hang":
        time.sleep(60)
    if do == "spin":
        while True:
            pass
    if do == "memory":
        return len(bytearray(8 << 30))
    if do == "raise":
        raise KeyError("gone")
    if do == "exit":
        sys.exit(3)
    if do == "die":
        os._exit(7)
    if do == "unpicklable":
        return lambda: 1
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "scorers.py"
    path.write_text(MODULE)
    return f"{path}:run"


async def test_each_way_to_fail_is_told_apart_and_the_pool_goes_on(target: str) -> None:
    pool = ProcessPool(1, memory_bytes=1 << 30)
    try:
        assert await pool.call(target, {"do": "echo", "value": [1]}, timeout_seconds=5) == [1]
        first = await pool.call(target, {"do": "pid"}, timeout_seconds=5)
        for do, said in (
            ("raise", r"KeyError: 'gone' \(scorers.py:"),
            ("exit", "SystemExit: 3"),
            ("unpicklable", "cannot leave the process"),
        ):
            with pytest.raises(ScorerFailedError, match=said):
                await pool.call(target, {"do": do}, timeout_seconds=5)
        assert await pool.call(target, {"do": "pid"}, timeout_seconds=5) == first
        with pytest.raises(ScorerFailedError, match="ended with exit code 7"):
            await pool.call(target, {"do": "die"}, timeout_seconds=5)
        with pytest.raises(ScorerExhaustedError, match="out of memory"):
            await pool.call(target, {"do": "memory"}, timeout_seconds=5)
        second = await pool.call(target, {"do": "pid"}, timeout_seconds=5)
        with pytest.raises(ScorerExhaustedError, match="out of time"):
            await pool.call(target, {"do": "spin"}, timeout_seconds=0.2)
        assert not psutil.pid_exists(second)
        third = await pool.call(target, {"do": "pid"}, timeout_seconds=5)
        assert len({first, second, third}) == 3
    finally:
        await pool.close()
    assert not psutil.pid_exists(third)


async def test_a_cancelled_call_takes_its_process_along(target: str) -> None:
    pool = ProcessPool(1)
    pid = await pool.call(target, {"do": "pid"}, timeout_seconds=5)
    task = asyncio.create_task(pool.call(target, {"do": "hang"}, timeout_seconds=60))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid)
    await pool.close()


async def test_processes_killed_while_they_wait_are_replaced(target: str) -> None:
    """However many: a reward would take two failures in a row for the answer's doing."""
    pool = ProcessPool(2)
    pids: list[Any] = await asyncio.gather(*(pool.call(target, {"do": "pid"}, timeout_seconds=5) for _ in range(6)))
    for pid in set(pids):
        os.kill(pid, signal.SIGKILL)
    for _ in range(500):
        if not any(psutil.pid_exists(pid) for pid in pids):
            break
        await asyncio.sleep(0.01)
    assert await pool.call(target, {"do": "echo", "value": 1}, timeout_seconds=5) == 1
    await pool.close()


async def test_processes_work_at_the_same_time(target: str) -> None:
    pool = ProcessPool(2)
    pids: list[Any] = await asyncio.gather(*(pool.call(target, {"do": "pid"}, timeout_seconds=5) for _ in range(6)))
    assert len(set(pids)) == 2
    assert os.getpid() not in pids
    await pool.close()


async def test_what_does_not_import_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module")
    pool = ProcessPool(1)
    with pytest.raises(ScorerFailedError, match="no_such_module"):
        await pool.call(f"{tmp_path}/broken.py:run", {}, timeout_seconds=5)
    await pool.close()


def test_a_pool_closed_while_busy_leaves_nothing(target: str) -> None:
    async def scene() -> Any:
        pool = ProcessPool(1)
        pid = await pool.call(target, {"do": "pid"}, timeout_seconds=5)
        task = asyncio.create_task(pool.call(target, {"do": "hang"}, timeout_seconds=60))
        await asyncio.sleep(0.05)
        await pool.close()
        with pytest.raises(ScorerExhaustedError):
            await task
        return pid

    started = time.monotonic()
    assert not psutil.pid_exists(asyncio.run(scene()))
    assert time.monotonic() - started < 10
