"""Side of `agent_loop`: many concurrent trajectories in runner processes, from submitted rows to groups."""

import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from agent_script import QUESTIONS, script
from turns import serve
from waiting_server import MeasuredRunner, Server, make_runner

from agentverl import garbage
from agentverl.data.tokenizers import load_tokenizer
from agentverl.loop_thread import LoopThread
from agentverl.protocol.ray_column_store import RayColumnStore
from agentverl.rollout.batching import assemble
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner_pool import RunnerPool
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.ray_cluster import RayInit, connect, disconnect
from agentverl.single_controller.ray_pools import UnreservedPool
from agentverl.single_controller.worker import WorkerClass

TURNS, RUNNERS = 5, 2
TOKEN_BYTES = 16
"""Of an id and a log-probability."""
_FEW = 16
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Measured:
    cpu_seconds: float
    own_seconds: float
    memory_bytes: float
    lags: list[float]


class _Runners:
    """Runner processes, their episodes and their gauges."""

    def __init__(self, model: str, trajectories: int) -> None:
        made = WorkerClass(MeasuredRunner, (partial(make_runner, model), RayColumnStore()))
        self._trajectories = trajectories
        self._workers = start_workers("ray", made, pool=UnreservedPool([RUNNERS], use_gpu=False))
        self._thread = LoopThread()
        self._thread.run(self._workers.start_player())
        self._pool = RunnerPool([self._workers.resident(rank, "player") for rank in range(RUNNERS)])
        self._thread.run(self._pool.open())
        self._gauges = [self._workers.resident(rank, "gauge") for rank in range(RUNNERS)]
        tokenizer = load_tokenizer(model)
        call, _, answer = script(tokenizer)
        self.replies = [call] * (TURNS - 1) + [answer]
        self._round = 0

    def close(self) -> None:
        self._thread.run(self._pool.close())
        self._thread.close()
        self._workers.close()

    def measure(self) -> _Measured:
        said = [self._thread.run(gauge.read()) for gauge in self._gauges]
        return _Measured(
            sum(one["cpu_seconds"] for one in said),
            sum(one["own_seconds"] for one in said),
            sum(one["memory_bytes"] for one in said),
            [lag for one in said for lag in one["lags"]],
        )

    def _submit(self, server: Server, count: int) -> Rollouts:
        self._round += 1
        for gauge in self._gauges:
            self._thread.run(gauge.begin())
        settings = RolloutsSettings(max_concurrent_trajectories=self._trajectories, sampling_params={"temperature": 1})
        rollouts = Rollouts(self._pool, LeastLoadedRouter([server]), settings, thread=self._thread)
        rows = [
            {"uid": f"{self._round}-{number}", "raw_prompt": QUESTIONS[number % len(QUESTIONS)]}
            for number in range(count)
        ]
        rollouts.submit(rows, 1)
        return rollouts

    def warm_up(self) -> None:
        """Play a few, so that what all share is there."""
        self._submit(Server(self.replies), _FEW).next_groups(_FEW)

    def play(self) -> dict[str, Any]:
        """One round: CPU seconds a turn of the runners and of this process, and how late the runners' loops were."""
        before, process, own = self.measure(), time.process_time(), self._own_seconds()
        rollouts = self._submit(Server(self.replies), self._trajectories)
        groups = rollouts.next_groups(self._trajectories)
        after = self.measure()
        assert all(len(group.results) == 1 for group in groups), "a trajectory failed"
        runners = after.cpu_seconds - before.cpu_seconds
        spent = {
            "own_seconds": after.own_seconds - before.own_seconds + self._own_seconds() - own,
            "runner_seconds": runners,
            "seconds": runners + time.process_time() - process,
        }
        turns = self._trajectories * TURNS
        by_turn = {name: seconds / turns for name, seconds in spent.items()}
        return {**by_turn, "lag_seconds": float(np.quantile(after.lags, 0.99))}

    def _own_seconds(self) -> float:
        """CPU seconds of this process's event loop and of this thread."""
        return self._thread.run(_thread_seconds()) + time.thread_time()

    def wait(self) -> float:
        """Bytes of a trajectory that waits for its last turn, beyond its tokens."""
        before = self.measure()
        rollouts = self._submit(Server(self.replies, holds=TURNS - 1), self._trajectories)
        for _ in range(int(_PATIENCE_SECONDS / 0.2)):
            waiting = sum(self._thread.run(gauge.waiting()) for gauge in self._gauges)
            if waiting == self._trajectories:
                break
            time.sleep(0.2)
        else:
            raise TimeoutError(f"{waiting} of {self._trajectories} trajectories wait")
        now = self.measure()
        for gauge in self._gauges:
            self._thread.run(gauge.let_go())
        groups = rollouts.next_groups(self._trajectories)
        columns = assemble(groups).batch
        tokens = int(columns.tensor("prompt_length").sum()) + len(columns.ragged("response_mask").values)
        return (now.memory_bytes - before.memory_bytes - TOKEN_BYTES * tokens) / self._trajectories


async def _thread_seconds() -> float:
    return time.thread_time()


os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
connect(RayInit(num_cpus=4, include_dashboard=False, object_store_memory=200 * 2**20))
runners = _Runners(sys.argv[1], int(sys.argv[2]))
runners.warm_up()
garbage.leave_alone_what_is_there()  # as a run does when all is open
# Later rounds use memory again that the first one left.
waiting_bytes = runners.wait()


def turn() -> dict[str, Any]:
    return {**runners.play(), "waiting_bytes": waiting_bytes}


try:
    serve(turn)
finally:
    runners.close()
    disconnect()
