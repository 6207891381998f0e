"""A run that is killed and started again ends as if nothing had happened; so does one that is asked to end."""

import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trainer.runs import (
    SMALL,
    Training,
    TrainingByCommand,
    assert_checkpoints_are_whole,
    assert_equals,
    logged,
    resumed_from,
)

STEPS = 8
WORDS = (*SMALL, f"trainer.total_training_steps={STEPS}")


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody killed, and how long it took."""

    run: Path
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    training = Training(tmp_path_factory.mktemp("undisturbed"), WORDS)
    training.start()
    training.wait_for(training.run.exists)
    started = time.monotonic()
    assert training.end() == 0, training.printed
    assert list(logged(training.run)) == list(range(STEPS + 1))
    assert training.checkpoints.steps() == [2, 4, 6, 8]
    assert_equals(training.run, training.run)
    return Undisturbed(training.run, time.monotonic() - started)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path, WORDS)
    yield training
    if training.running:
        training.send(signal.SIGKILL)


def is_subsequence(some: list[int], of: list[int]) -> bool:
    rest = iter(of)
    return all(one in rest for one in some)


def newest(training: Training) -> int:
    return max(training.checkpoints.steps(), default=-1)


def kill_at_random(training: Training, reference: Undisturbed, chance: random.Random, kills: int) -> int:
    """Kill a run at most so often, at random moments after its first checkpoint, then let it finish; the kills."""
    training.start()
    training.wait_for(lambda: bool(training.checkpoints.steps()))
    marks = [-1]
    while len(marks) <= kills:
        training.let_run(chance.uniform(0, reference.seconds / 2))
        killed = training.send(signal.SIGKILL) == -signal.SIGKILL
        assert killed or training.end() == 0, training.printed
        assert_checkpoints_are_whole(training.run, reference.run)
        if (training.run / "summary.json").exists():  # all was done; one more start would begin another run
            break
        marks.append(newest(training))
        training.start()
    else:
        assert training.end() == 0, training.printed
    resumed = resumed_from(training.run)
    assert resumed[-1] == marks[-1]
    assert is_subsequence(resumed, marks)
    assert_equals(training.run, reference.run)
    return len(marks) - 1


def test_kills_at_random_moments_change_nothing(tmp_path: Path, undisturbed: Undisturbed) -> None:
    chance, kills, runs = random.Random(0), 0, 0
    while kills < 3:
        runs += 1
        kills += kill_at_random(Training(tmp_path / str(runs), WORDS), undisturbed, chance, 3 - kills)


@pytest.mark.acceptance
def test_twenty_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    """Of the command as a user types it, in longer runs, from the first import to the last word."""
    words = (*SMALL, "trainer.total_training_steps=20", "trainer.save_freq=3")
    started = time.monotonic()
    first = TrainingByCommand(tmp_path / "undisturbed", words)
    assert first.finish() == 0, first.printed
    undisturbed = Undisturbed(first.run, time.monotonic() - started)
    chance, kills, runs = random.Random(0), 0, 0
    while kills < 20:
        runs += 1
        training = TrainingByCommand(tmp_path / str(runs), (*words, "trainer.max_actor_ckpt_to_keep=2"))
        kills += kill_at_random(training, undisturbed, chance, 20 - kills)
        assert training.checkpoints.steps() == [18, 20]


def test_a_kill_during_a_save_leaves_the_checkpoints_before_it(training: Training, undisturbed: Undisturbed) -> None:
    """Before the first checkpoint, so that the run begins anew; then at the end of an epoch."""
    unfinished = training.run / "checkpoints" / "global_step_2.unfinished"
    training.start()
    training.wait_for(unfinished.exists)
    assert training.send(signal.SIGKILL) == -signal.SIGKILL
    caught = unfinished.exists()
    assert training.checkpoints.steps() == ([] if caught else [2])
    training.start()
    training.wait_for(training.checkpoints.of(4).exists)
    assert training.send(signal.SIGKILL) == -signal.SIGKILL
    assert training.checkpoints.steps() == [2, 4]
    assert training.finish() == 0, training.printed
    assert resumed_from(training.run) == [-1, -1 if caught else 2, 4]
    assert_equals(training.run, undisturbed.run)


def test_a_kill_between_a_checkpoint_and_its_metrics_loses_none(training: Training, undisturbed: Undisturbed) -> None:
    shutil.copytree(undisturbed.run, training.run)
    (training.run / "summary.json").unlink()
    metrics = training.run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-100])
    assert training.finish() == 0, training.printed
    assert resumed_from(training.run) == [-1, STEPS]
    assert_equals(training.run, undisturbed.run)


def test_sigterm_saves_and_only_the_same_settings_go_on(training: Training, undisturbed: Undisturbed) -> None:
    training.start()
    training.wait_for(lambda: training.lines == 3)
    assert training.send(signal.SIGTERM) == 75
    step = newest(training)
    assert step >= 2  # the signal may come just before the next step begins
    assert f"ended by SIGTERM after step {step}, which is saved" in training.printed
    assert training.finish("actor.optim.lr=1e-3") == 2
    assert "actor_rollout_ref.actor.optim.lr: 0.0005 -> 0.001" in training.printed
    assert training.finish() == 0, training.printed
    assert resumed_from(training.run) == [-1, step]
    assert_equals(training.run, undisturbed.run)
    successor = training.run.with_name(f"{training.run.name}-2")
    training.start()
    training.wait_for((successor / "config.yaml").exists)
    training.send(signal.SIGKILL)
    assert_equals(training.run, undisturbed.run)


def test_a_deterministic_run_equals_itself(tmp_path: Path, undisturbed: Undisturbed) -> None:
    training = Training(tmp_path, (*SMALL, "trainer.total_training_steps=3"))
    assert training.finish() == 0, training.printed
    expected = logged(undisturbed.run)
    for step, metrics in logged(training.run).items():
        assert metrics | expected[step] == metrics


@pytest.mark.integration
def test_a_killed_run_with_a_critic_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    words = (*SMALL, "trainer.total_training_steps=4", "algorithm.adv_estimator=gae", "critic.optim.lr=1e-3")
    undisturbed = Training(tmp_path / "undisturbed", words)
    assert undisturbed.finish() == 0, undisturbed.printed
    training = Training(tmp_path / "killed", words)
    training.start()
    training.wait_for(training.checkpoints.of(2).exists)
    training.send(signal.SIGKILL)
    assert training.finish() == 0, training.printed
    assert any((training.checkpoints.of(4) / "critic").iterdir())
    assert_equals(training.run, undisturbed.run)


@pytest.mark.integration
def test_a_run_killed_while_it_saves_beside_training_ends_as_if_nothing_had_happened(
    training: Training, undisturbed: Undisturbed
) -> None:
    training.words = (*training.words, "actor.checkpoint.async_save=true")
    for step in (2, 6):
        unfinished = training.checkpoints.of(step).with_name(f"global_step_{step}.unfinished")
        training.start()
        training.wait_for((unfinished / "actor").exists)
        training.send(signal.SIGKILL)
    assert training.finish() == 0, training.printed
    assert all(step in (-1, 2, 4, 6) for step in resumed_from(training.run))
    assert_equals(training.run, undisturbed.run)
