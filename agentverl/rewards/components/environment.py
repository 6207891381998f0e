"""A component that the trajectory's environment scores."""

from agentverl.errors import BoundaryError
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.components.base import RewardComponent
from agentverl.settings.section import Section


class EnvironmentScore(RewardComponent[Section]):
    """What the environment's `score` gave."""

    @property
    def asks_environment(self) -> bool:
        return True

    async def score(self, judged: RewardInput) -> RewardResult:
        if judged.environment is None:
            raise BoundaryError("no environment scored this trajectory", "reward")
        return judged.environment
