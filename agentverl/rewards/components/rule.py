"""A component that a function scores."""

from pydantic import ConfigDict

from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.components.base import ComponentContext, RewardComponent
from agentverl.rewards.function_reward import FunctionReward
from agentverl.rewards.scorer import custom_target
from agentverl.settings.section import Section


class RuleSettings(Section):
    """Which function; all other keys are its keywords."""

    model_config = ConfigDict(extra="allow")

    function: str | None = None
    """An installed scorer, a file or module with `compute_score`, `module:function` or `file.py:function`; without it
    that of the row's data source."""


class Rule(RewardComponent[RuleSettings]):
    """Scores with a function of verl's signature."""

    Settings = RuleSettings

    def __init__(self, name: str, settings: RuleSettings, context: ComponentContext) -> None:
        super().__init__(name, settings, context)
        target = None if settings.function is None else custom_target(settings.function)
        self._reward = FunctionReward(context.calls, target, settings.model_extra or {})

    def check(self, data_sources: set[str]) -> None:
        self._reward.check(data_sources)

    async def score(self, judged: RewardInput) -> RewardResult:
        return await self._reward.score(judged)
