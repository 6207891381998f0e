"""Components of the rewards that turns earned: those of tools, and those of loops and environments."""

from collections import Counter
from typing import Literal

from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.components.base import RewardComponent
from agentverl.settings.section import Section

NOT_OF_TOOLS = frozenset({"turn", "environment"})
"""Names that `chat.reward` and an environment's step give; every other name is a tool's or the loop author's own."""


class TurnSettings(Section):
    """Which rewards, and where they count."""

    names: list[str] | None = None
    """The names that were given with them; without it all of the kind."""
    credit: Literal["turn", "trajectory"] = "turn"
    """`turn` leaves each, times the weight, at the turn that earned it; `trajectory` adds their sum to the score."""


class TurnRewards(RewardComponent[TurnSettings]):
    """The sum of turn rewards."""

    Settings = TurnSettings

    @property
    def stays_at_turns(self) -> bool:
        return self.settings.credit == "turn"

    async def score(self, judged: RewardInput) -> RewardResult:
        return RewardResult(score=sum(self._chosen(judged).values()))

    def turn_weights(self, judged: RewardInput, weight: float) -> dict[str, float]:
        factor = weight if self.stays_at_turns else 0.0
        return dict.fromkeys(self._chosen(judged), factor)

    def _chosen(self, judged: RewardInput) -> dict[str, float]:
        earned: Counter[str] = Counter()
        for output in judged.trajectory:
            for turn in output.turns:
                earned.update(turn.rewards_by_name())
        return {name: value for name, value in earned.items() if self._is_chosen(name)}

    def _is_chosen(self, name: str) -> bool:
        return self.settings.names is None or name in self.settings.names


class ToolRewards(TurnRewards):
    """The sum of the rewards that tool calls earned."""

    def _is_chosen(self, name: str) -> bool:
        return name not in NOT_OF_TOOLS and super()._is_chosen(name)
