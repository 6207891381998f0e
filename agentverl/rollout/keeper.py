"""What is done with a trajectory where it was played: journal, texts, and its tokens and images as columns."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentverl.data.tokenizers import text_of
from agentverl.protocol.column_store import Block, MemoryColumnStore, Stored
from agentverl.protocol.columns import object_array
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.episode import EpisodeResult
from agentverl.rollout.kept_sequences import Kept, KeptSequence, trainable
from agentverl.rollout.token_classes import TokenClasses
from agentverl.tracking.journal import Journal, TrajectoryRecord
from agentverl.trajectory import AgentLoopOutput

logger = logging.getLogger(__name__)

_STORE = MemoryColumnStore()


@dataclass(kw_only=True)
class Keeper:
    """Takes in each trajectory once it is scored or has failed, so that whoever trains on it needs no tokens."""

    journal: Journal | None = None
    tokenizer: Any = None
    """For the texts of validations."""
    keeps_texts: bool = False
    """Of trajectories that are trained on, too."""
    classes: TokenClasses | None = None
    """Sorts tokens, where somebody asks for the entropy of each class."""

    def keep(self, result: EpisodeResult) -> None:
        """Write a trajectory down, and set its `kept`, `texts` and `written`."""
        if self.journal is not None:
            try:
                result.written = self.journal.trajectory(_record(result))
            except Exception:  # a journal that cannot be written must not end the run
                logger.warning("the journal did not take %s", result.episode.trajectory_id, exc_info=True)
        validates = result.episode.validation
        if self.tokenizer is not None and result.outputs and (validates or self.keeps_texts):
            last = result.outputs[-1]
            result.texts = text_of(self.tokenizer, last.prompt_ids), text_of(self.tokenizer, last.response_ids)
        if not validates and not result.failed:
            result.kept = self._kept(trainable(result.outputs))

    def _kept(self, outputs: list[AgentLoopOutput]) -> Kept:
        sequences = [KeptSequence.of(output) for output in outputs]
        columns: dict[str, Stored] = {
            "prompts": Ragged.from_list([np.array(output.prompt_ids, np.int64) for output in outputs]),
            "responses": Ragged.from_list([np.array(output.response_ids, np.int64) for output in outputs]),
            "multi_modal_data": object_array(output.multi_modal_data for output in outputs),
        }
        if self.classes is not None:
            classes = [
                self.classes.of_row(np.array(output.response_ids, np.int64), sequence.turn_index(output.turns))
                for output, sequence in zip(outputs, sequences, strict=True)
            ]
            columns["token_class"] = Ragged.from_list(classes)
        keys = _STORE.put(list(columns.values())) if outputs else []
        return Kept(sequences, {name: Block(_STORE, key) for name, key in zip(columns, keys, strict=False)})


def _record(result: EpisodeResult) -> TrajectoryRecord:
    """A trajectory as the journal keeps it."""
    row = result.episode.row
    failure = result.failure
    return TrajectoryRecord(
        uid=result.episode.uid,
        sample=result.episode.sample,
        step=result.episode.step,
        split="val" if result.episode.validation else "train",
        outputs=result.outputs,
        trajectory_id=result.episode.trajectory_id,
        termination=str(result.termination),
        reward=result.score,
        reward_components=result.components,
        environment_score=result.environment_score,
        error=None if failure is None else f"{failure.boundary}: {failure.message}",
        data_source=str(row.get("data_source", "")),
        ground_truth=(row.get("reward_model") or {}).get("ground_truth"),
        extra_info=row.get("extra_info") or {},
        timings={
            "episode": result.seconds,
            "generate": sum(output.metrics.generate_sequences for output in result.outputs),
            "tools": sum(output.metrics.tool_calls for output in result.outputs),
            "score": sum(output.metrics.compute_score for output in result.outputs),
        },
    )
