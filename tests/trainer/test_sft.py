"""Fine-tuning learns what assistants wrote, resumes, and leaves a model that a run can take."""

import json
from pathlib import Path

import pytest

from agentverl.cli import run
from agentverl.tracking.jsonl import read_metrics
from agentverl.trainer.ppo import PPOTrainer


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "conversations.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {number} + 1?"},
                {"role": "assistant", "content": "Answer: 7"},
            ]
        }
        for number in range(32)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def words(conversations: Path, *more: str) -> list[str]:
    return [
        "sft",
        "model.path=nano",
        f"data.train_files={conversations}",
        f"data.val_files={conversations}",
        "data.train_batch_size=16",
        "engine.dtype=float32",
        "trainer.logger=file",
        *more,
    ]


def test_the_loss_falls_and_the_model_can_be_trained_further(
    conversations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(conversations.parent)
    assert run(words(conversations, "trainer.total_epochs=3", "trainer.test_freq=1")) == 0
    metrics = read_metrics(Path("outputs/sft"))
    assert list(metrics) == [1, 2, 3, 4, 5, 6]
    assert metrics[6]["val/loss"] < 0.5 * metrics[1]["val/loss"]
    assert Path("outputs/sft/curves.png").stat().st_size > 1000
    assert json.loads(Path("outputs/sft/summary.json").read_text())["steps"] == 6
    evaluated = ["eval", "model.path=outputs/sft/huggingface", "data.val_size=4", "trainer.logger=file"]
    assert run(evaluated) == 0


def test_an_interrupted_run_ends_with_the_metrics_of_an_undisturbed_one(
    conversations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(conversations.parent)
    whole = words(conversations, "trainer.total_training_steps=4", "trainer.experiment_name=whole")
    assert run(whole) == 0
    # A run that was killed after its checkpoint of step 2 has this folder: no summary, a line too many.
    assert run(words(conversations, "trainer.total_training_steps=2", "trainer.experiment_name=cut")) == 0
    Path("outputs/cut/summary.json").unlink()
    with open("outputs/cut/metrics.jsonl", "a") as file:
        file.write('{"step": 3, "data": {"train/loss": 99.0}}\n{"step": 4, "da')
    assert run(words(conversations, "trainer.total_training_steps=4", "trainer.experiment_name=cut")) == 0
    cut, undisturbed = read_metrics(Path("outputs/cut")), read_metrics(Path("outputs/whole"))
    assert [cut[step]["train/loss"] for step in cut] == [undisturbed[step]["train/loss"] for step in undisturbed]


def test_rl_goes_on_from_the_fine_tuned_model(conversations: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(conversations.parent)
    assert run(words(conversations, "trainer.total_training_steps=1")) == 0
    from agentverl.settings.compose import compose

    overrides = [
        "model.path=outputs/sft/huggingface",
        "trainer.total_training_steps=1",
        "trainer.logger=file",
        "data.train_size=8",
        "data.val_size=2",
        "data.train_batch_size=2",
        "actor.ppo_mini_batch_size=2",
        "rollout.n=2",
    ]
    assert PPOTrainer(compose(overrides=overrides)).fit().steps == 1
