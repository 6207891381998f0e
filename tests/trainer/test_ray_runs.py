"""`trainer.launcher=ray`: the same run in processes of its own; what ends one of them ends it clearly."""

import signal
import socket
from pathlib import Path

import psutil
import pytest

from agentverl.errors import BadInputError
from agentverl.settings.compose import compose_words
from agentverl.single_controller.pools import ResourcePoolManager
from agentverl.trainer.placement import placement_of
from tests.trainer.runs import SMALL, TrainingByCommand, logged

ROUNDING = ("training/rollout_probs_diff_mean", "training/rollout_probs_diff_max")
"""Differences between server and engine, which are rounding, and depend on who computes beside whom."""
WORDS = (*SMALL, "trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.val_before_train=false")
RAY = ("trainer.launcher=ray", "ray_kwargs.ray_init.include_dashboard=false")


def test_roles_stand_in_the_pools_that_a_manager_gives_them() -> None:
    settings = compose_words(("trainer.launcher=ray", "trainer.nnodes=2", "trainer.n_gpus_per_node=4"))
    assert placement_of(settings, Path("logs")).pools == {"devices": [4, 4]}
    manager = ResourcePoolManager({"a": {"gpu": 4}, "b": [1]}, {"actor_rollout_ref": "a", "critic": "b"})
    placement = placement_of(settings, Path("logs"), manager)
    assert placement.pools == {"a": [4], "b": [1]}
    assert placement.roles == {"actor_rollout_ref": "a", "critic": "b"}


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_ranks_in_processes_of_their_own_learn_what_one_process_learns(tmp_path: Path) -> None:
    alone = TrainingByCommand(tmp_path / "local", WORDS)
    assert alone.finish() == 0, alone.printed
    expected = logged(alone.run)
    for ranks in (1, 2):
        training = TrainingByCommand(tmp_path / f"ray{ranks}", (*WORDS, *RAY, f"trainer.n_gpus_per_node={ranks}"))
        assert training.finish() == 0, training.printed
        for step, metrics in logged(training.run).items():
            for name in metrics.keys() - set(ROUNDING):
                assert metrics[name] == pytest.approx(expected[step][name], rel=1e-4 if ranks > 1 else 0, abs=1e-6)
        logs = {path.name for path in (training.run / "logs").glob("actor*.log")}
        assert logs == {f"actor_rollout_ref-rank{rank}.log" for rank in range(ranks)}


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_sigterm_saves_and_a_killed_rank_ends_the_run_with_one_line(tmp_path: Path) -> None:
    training = TrainingByCommand(tmp_path, (*WORDS, *RAY, "trainer.total_training_steps=50", "trainer.save_freq=50"))
    training.start()
    training.wait_for(lambda: training.lines >= 1)
    assert training.send(signal.SIGTERM) == 75, training.printed
    saved = training.checkpoints.steps()
    assert len(saved) == 1
    training.start()
    training.wait_for(lambda: training.lines > saved[0])
    assert f"quickstart goes on after step {saved[0]}\n" in training.printed
    assert training.process is not None
    ranks = [
        process
        for process in psutil.Process(training.process.pid).children(recursive=True)
        if "ray::ActorRolloutRefWorker" in " ".join(process.cmdline())
    ]
    ranks[0].kill()
    assert training.end() == 1, training.printed
    assert "Traceback" not in training.printed
    last = training.printed.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "rank 0 of 1" in last
    assert "it was killed, as where memory runs out, or it crashed" in last
    assert "goes on from its last checkpoint" in last
    assert "actor_id" not in last


@pytest.mark.integration
def test_a_ray_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    training = TrainingByCommand(tmp_path, (*WORDS, *RAY[:1], "ray_kwargs.ray_init.address=127.0.0.1:1"))
    assert training.finish() == BadInputError.exit_code, training.printed
    assert "Ray is not running at 127.0.0.1:1" in training.printed


@pytest.mark.integration
def test_more_ranks_than_cpus_are_bad_input(tmp_path: Path) -> None:
    words = (*WORDS, *RAY, "trainer.n_gpus_per_node=3", "ray_kwargs.ray_init.num_cpus=2")
    training = TrainingByCommand(tmp_path, words)
    assert training.finish() == BadInputError.exit_code, training.printed
    assert "no machine has 3 CPUs" in training.printed
    assert not training.run.exists()


@pytest.mark.integration
def test_ports_that_are_taken_are_bad_input(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        words = (*WORDS, *RAY, f"trainer.master_port_range=[{port},{port}]")
        training = TrainingByCommand(tmp_path, words)
        assert training.finish() == BadInputError.exit_code, training.printed
    assert f"trainer.master_port_range=[{port}, {port}]: every port of it is taken" in training.printed
    assert not training.run.exists()
