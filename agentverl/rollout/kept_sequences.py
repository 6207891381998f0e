"""What the controller has of sequences whose tokens are in a store: lengths, mask, log-probabilities, references."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from agentverl.protocol.column_store import Block
from agentverl.trajectory import AgentLoopOutput, Turn


@dataclass(frozen=True, slots=True)
class KeptSequence:
    """One trainable sequence."""

    prompt_length: int
    response_length: int
    sampled: np.ndarray[Any, Any]
    """(N, 2) the [start, stop) of each run of tokens that the policy sampled."""
    log_probs: np.ndarray[Any, Any] | None
    """(T) float32, 0 where the policy did not sample."""

    @classmethod
    def of(cls, output: AgentLoopOutput) -> "KeptSequence":
        """Of a sequence with its tokens."""
        mask = np.frombuffer(bytes([0, *output.response_mask, 0]), np.uint8)
        said = output.response_logprobs
        return cls(
            prompt_length=len(output.prompt_ids),
            response_length=len(output.response_ids),
            sampled=np.flatnonzero(mask[1:] != mask[:-1]).reshape(-1, 2).astype(np.int32),
            log_probs=None if said is None else np.array(said, np.float32),
        )

    def __reduce__(self) -> tuple[type["KeptSequence"], tuple[Any, ...]]:
        # The way of frozen dataclasses takes longer than all else that is said of a sequence.
        return KeptSequence, tuple(getattr(self, field.name) for field in fields(self))

    def policy_turns(self, turns: list[Turn]) -> list[Turn]:
        """Those of the policy; a loop that names none took one for each run of sampled tokens."""
        named = [turn for turn in turns if turn.role == "assistant"]
        return named or [Turn(role="assistant", start=int(start), stop=int(stop)) for start, stop in self.sampled]

    def turn_index(self, turns: list[Turn]) -> np.ndarray[Any, Any]:
        """(T) the number of the policy's turn that each token belongs to, -1 on all other tokens."""
        numbers = np.full(self.response_length, -1, np.int64)
        for number, turn in enumerate(self.policy_turns(turns)):
            numbers[turn.start : turn.stop] = number
        return numbers


@dataclass(frozen=True, slots=True)
class Kept:
    """A trajectory's trainable sequences in order."""

    sequences: list[KeptSequence]
    columns: Mapping[str, Block]
    """By name: what the controller does not compute with, a row a sequence."""


def trainable(outputs: list[AgentLoopOutput]) -> list[AgentLoopOutput]:
    """The sequences that are trained on, in order."""
    return sorted((output for output in outputs if output.trainable), key=lambda output: output.sequence_index)
