"""The tokens of one sequence: what was sampled and what was inserted, with masks, log-probabilities and versions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentverl.trajectory import TokenOutput, Turn, VersionSpan


@dataclass(slots=True)
class TokenSequence:
    """A prompt and a response that only grows; inserted tokens count once a sampled one follows them.

    So a response never ends with tokens that no sampled token saw.
    """

    index: int
    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] | None = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)
    pending_ids: list[int] = field(default_factory=list)
    """What stands between the last sampled token and the next one; rendered anew as long as messages are added."""
    routed_experts: Any = None

    @property
    def response_length(self) -> int:
        """Response tokens, those that wait for the next reply included."""
        return len(self.response_ids) + len(self.pending_ids)

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + self.response_length

    def context(self) -> list[int]:
        """The ids that the next reply is sampled after."""
        return [*self.prompt_ids, *self.response_ids, *self.pending_ids]

    def tail(self, turns: int) -> list[int]:
        """The response from the `turns`-th last assistant turn on, or from the first where there are fewer."""
        starts = [turn.start for turn in self.turns if turn.role == "assistant"]
        return self.response_ids[starts[-min(turns, len(starts))] :] if starts else []

    def commit_pending(self, role: str) -> None:
        """Make the waiting ids part of the response, as a turn of `role` under mask 0."""
        if not self.pending_ids:
            return
        start, count = len(self.response_ids), len(self.pending_ids)
        self.response_ids += self.pending_ids
        self.mask += [0] * count
        if self.log_probs is not None:
            self.log_probs += [0.0] * count
        self.turns.append(_turn(role, start, start + count))
        self.pending_ids = []

    def append_sampled(self, output: TokenOutput, *, seconds: float, temperature: float) -> Turn:
        """Add a reply as the server sampled it; empty ones get an empty turn."""
        start, count = len(self.response_ids), len(output.token_ids)
        self.response_ids += output.token_ids
        self.mask += [1] * count
        if self.log_probs is not None and output.log_probs is not None:
            self.log_probs += output.log_probs
        elif count:
            self.log_probs = None
        self._merge_versions(start, output.weight_versions)
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts
        turn = _turn("assistant", start, start + count)
        turn.seconds = seconds
        turn.stop_reason = output.stop_reason
        turn.temperature = temperature
        self.turns.append(turn)
        return turn

    def _merge_versions(self, start: int, spans: Sequence[VersionSpan]) -> None:
        for stop, version in spans:
            if self.version_spans and self.version_spans[-1][1] == version:
                self.version_spans[-1] = (start + stop, version)
            else:
                self.version_spans.append((start + stop, version))


def _turn(role: str, start: int, stop: int) -> Turn:
    return Turn(role=role, start=start, stop=stop)
