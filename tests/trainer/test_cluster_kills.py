"""Parts of a run in a cluster are killed: it goes on, or stops with one clear line and resumes; no prompt is lost.

Two Ray nodes stand on this machine. The training rank and the controller are on the first one, a rollout server and a
runner of episodes on each.
"""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.runs import SMALL, TrainingByCommand, assert_each_prompt_is_in_one_step, assert_steps_follow

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]  # minutes long: nodes die and are waited for
STEPS = 8
WORDS = (
    *(word for word in SMALL if not word.startswith("trainer.deterministic")),
    "trainer.launcher=ray",
    "rollout.nnodes=2",
    "rollout.n_gpus_per_node=1",
    "rollout.checkpoint_engine.backend=shared_memory",
    "agent.num_workers=2",
    "agent.max_tokens_per_request=8",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)


class Machines:
    """Two nodes of a Ray cluster; the first one has room for the training rank."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        self.second: Any = None

    def begin(self, training: TrainingByCommand, *more: str) -> None:
        """Start a run; the second node comes when controller and training rank stand on the first."""
        training.start(*more)
        training.wait_for(lambda: bool(self.processes("ActorRolloutRefWorker")))
        self.second = self.cluster.add_node(num_cpus=1)

    def processes(self, title: str) -> list[psutil.Process]:
        """The processes of a worker class on both nodes, the oldest first."""
        found = []
        for node in self.cluster.list_all_nodes():
            for info in node.all_processes.get("raylet", []):
                with_children = psutil.Process(info.process.pid).children(recursive=True)
                found += [one for one in with_children if f"ray::{title}" in " ".join(one.cmdline())]
        return sorted(found, key=lambda one: one.create_time())

    def kill(self, title: str) -> None:
        """Kill the oldest process of a worker class."""
        self.processes(title)[0].kill()

    def close(self) -> None:
        self.cluster.shutdown()


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    made = Machines()
    yield made
    made.close()


@pytest.fixture
def training(tmp_path: Path, machines: Machines) -> Iterator[TrainingByCommand]:
    address = f"ray_kwargs.ray_init.address={machines.cluster.address}"
    training = TrainingByCommand(tmp_path, (*WORDS, address, f"trainer.total_training_steps={STEPS}"))
    yield training
    if training.running:
        training.send(signal.SIGKILL)


def kill_after_a_step(training: TrainingByCommand, kill: Callable[[], Any], *, seconds: float = 0.3) -> None:
    """Kill something so many seconds after the next step has ended."""
    seen = training.lines
    training.wait_for(lambda: training.lines > seen)
    assert training.running, training.printed
    time.sleep(seconds)
    kill()


def test_a_runner_and_a_server_that_are_killed_come_back(machines: Machines, training: TrainingByCommand) -> None:
    machines.begin(training, "trainer.total_training_steps=1000")
    kill_after_a_step(training, lambda: machines.kill("RunnerWorker"))
    assert training.wait_for(lambda: bool(re.search(r"runner \d is back", training.printed))), training.printed
    kill_after_a_step(training, lambda: machines.kill("RolloutServerWorker"))
    assert training.wait_for(lambda: "was started again, and waits for weights" in training.printed), training.printed
    kill_after_a_step(training, lambda: None)
    assert training.send(signal.SIGTERM) == 75, training.printed
    assert "is lost; the" in training.printed
    assert "a rollout server left rotation" in training.printed
    assert "Traceback" not in training.printed
    assert_each_prompt_is_in_one_step(training.run)


def test_a_run_goes_on_without_a_machine_and_resumes_after_a_lost_rank(
    machines: Machines, training: TrainingByCommand
) -> None:
    machines.begin(training)
    # At once, while episodes are played: a runner that is lost while the policy learns from its columns ends the run.
    kill_after_a_step(training, lambda: machines.cluster.remove_node(machines.second, allow_graceful=False), seconds=0)
    kill_after_a_step(training, lambda: machines.kill("ActorRolloutRefWorker"))
    assert training.end() == 1, training.printed
    last = training.printed.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "rank 0 of 1" in last
    assert "Traceback" not in training.printed
    assert training.finish("rollout.nnodes=1") == 0, training.printed
    assert_steps_follow(training.run)
    assert_each_prompt_is_in_one_step(training.run)
