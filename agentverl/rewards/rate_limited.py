"""A reward manager for functions that ask a service with limits: requests and tokens a minute, and at a time."""

from agentverl.deadlines import Deadline
from agentverl.rewards.base import RewardContext, RewardInput, RewardResult
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.rewards.rate_limit import RateLimit
from agentverl.settings.reward import RewardSettings


class RateLimitedRewardManager(NaiveRewardManager):
    """Scores as `naive`, each trajectory in its turn; waiting for it counts against no deadline."""

    def __init__(self, settings: RewardSettings | None = None, context: RewardContext | None = None) -> None:
        super().__init__(settings, context)
        chosen = self.settings
        self._limit = RateLimit(chosen.max_rpm, chosen.max_tpm, chosen.max_concurrent)

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        async with self._limit.request(self.settings.estimated_tokens_per_request):
            return await super().score(judged, deadline)
