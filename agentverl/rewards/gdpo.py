"""GDPO's reward manager: every trajectory has every component that the advantage estimator reads."""

import math

from agentverl.deadlines import Deadline
from agentverl.errors import BoundaryError
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.naive import NaiveRewardManager


class GdpoRewardManager(NaiveRewardManager):
    """Scores as `naive`; a trajectory that lacks one of `algorithm.gdpo_reward_keys` has no score (Liu et al. 2026).

    The keys are names of components, or of what the reward function reports beside its score.
    """

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        result = await super().score(judged, deadline)
        for key in self.context.reward_keys:
            value = result.components.get(key)
            if not isinstance(value, int | float) or not math.isfinite(value):
                came = "nothing" if value is None else repr(value)
                raise BoundaryError(
                    f"algorithm.gdpo_reward_keys names {key!r}, of which the reward reported {came}, no number; "
                    f"it reports {', '.join(result.components) or 'nothing besides its score'}",
                    "reward",
                )
        return result
