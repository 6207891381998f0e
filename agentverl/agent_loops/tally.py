"""What is counted while a sequence grows: seconds, calls, errors, rewards by name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentverl.agent_loops.calls import INVALID_KINDS
from agentverl.messages import ToolCall, ToolResponse


@dataclass(slots=True)
class Tally:
    """Counts of one sequence; their sum over a trajectory's sequences is the trajectory's."""

    generate_seconds: float = 0.0
    tool_seconds: float = 0.0
    num_preempted: int = 0
    num_calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)

    def count_answers(self, calls: Sequence[ToolCall], answers: Sequence[ToolResponse]) -> None:
        """Count the calls and the errors, and add up the metrics that the tools report."""
        self.num_calls += len(calls)
        for answer in answers:
            if answer.error is not None:
                self.errors[answer.error] += 1
            for name, value in answer.metrics.items():
                self.metrics[name] = self.metrics.get(name, 0.0) + value

    def credit(self, name: str, value: float) -> None:
        self.rewards[name] = self.rewards.get(name, 0.0) + value

    def extra_fields(self) -> dict[str, Any]:
        """The counts under the names they have in an output's `extra_fields`."""
        invalid = sum(count for kind, count in self.errors.items() if kind in INVALID_KINDS)
        return {
            "num_tool_calls": self.num_calls,
            "num_invalid_calls": invalid,
            "tool_errors": dict(self.errors),
            "tool_metrics": dict(self.metrics),
            "turn_rewards": dict(self.rewards),
        }
