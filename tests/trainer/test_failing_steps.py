"""A step that fails lets go of what it held; what cannot be shown ends nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentverl.protocol.column_store import held
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.settings.compose import compose_words
from agentverl.single_controller.worker_errors import WorkerError
from agentverl.tracking.journal import Written
from agentverl.trainer.ppo import PPOTrainer
from agentverl.trainer.schedule import Sampled
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.trainer.validation import ValidationOutcome
from tests.tracking.episodes import output
from tests.trainer.runs import SMALL

LOSS = """
def loss(*args, **kwargs):
    raise ZeroDivisionError("no loss")
"""


class Watched(PPOTrainer):
    """Remembers what its last step learns from."""

    sampled: list[EpisodeResult]

    def _learn(self, sampled: Sampled, watch: Stopwatch) -> tuple[DataProto, dict[str, float]]:
        self.sampled = [result for group in sampled.groups for result in group.results]
        assert len(held(self.blocks)) == len(self.blocks) > 0
        return super()._learn(sampled, watch)

    @property
    def blocks(self) -> list[Any]:
        return [block for result in self.sampled for block in result.blocks]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Watched]:
    loss = tmp_path / "mine.py"
    loss.write_text(LOSS)
    words = (
        f"actor.policy_loss.loss_mode={loss}:loss",
        f"trainer.default_local_dir={tmp_path / 'runs'}",
        "trainer.val_before_train=false",
        "trainer.log_val_generations=2",
    )
    made = Watched(compose_words((*SMALL, *words)))
    try:
        made.begin()
        yield made
    finally:
        made.end()


def test_a_step_that_fails_drops_its_columns(trainer: Watched) -> None:
    with pytest.raises(WorkerError, match="ZeroDivisionError: no loss"):
        trainer.train_step()
    assert held(trainer.blocks) == set()


def test_trajectories_that_another_machine_keeps_to_itself_are_not_shown(
    trainer: Watched, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cut_short = tmp_path / "cut-short.jsonl"
    cut_short.write_text('{"kind":')
    results = [
        EpisodeResult(
            episode=Episode(uid="0-1", sample=0, row={}, sampling_params={}),
            outputs=[output()],
            written=Written(file, 0),
        )
        for file in (tmp_path / "elsewhere.jsonl", cut_short)
    ]
    trainer.session.record_validation(0, ValidationOutcome(0.0, 0.0, results=results))
    assert caplog.text.count("cannot be shown from here") == 2
