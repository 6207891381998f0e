"""The usual reward manager: each trajectory by itself, as soon as it ends."""

import time
from typing import Any, ClassVar

from agentverl.deadlines import Deadline
from agentverl.rewards.base import RewardContext, RewardInput, RewardManager, RewardResult
from agentverl.rewards.components.base import ComponentContext
from agentverl.rewards.function_calls import FunctionCalls
from agentverl.rewards.function_reward import FunctionReward
from agentverl.rewards.hybrid import Hybrid
from agentverl.rewards.scorer import custom_target
from agentverl.settings.reward import RewardSettings


class NaiveRewardManager(RewardManager):
    """Scores with `reward.components`, else the configured function, else the scorer of the row's data source.

    Raises:
        PluginError, SettingsError: what is configured is not found or takes other arguments.
    """

    own_arguments: ClassVar[frozenset[str]] = frozenset()
    """Keys of `reward.reward_kwargs` that the manager reads itself; the others are the function's."""
    in_processes: ClassVar[bool] = False
    """Whether all synchronous functions run in processes, and not only those marked `@killable`."""

    def __init__(self, settings: RewardSettings | None = None, context: RewardContext | None = None) -> None:
        super().__init__(settings or RewardSettings(), context)
        self.calls = FunctionCalls(self.settings, in_processes=self.in_processes)
        self._reward = self._make_reward()

    def _make_reward(self) -> Hybrid | FunctionReward:
        settings = self.settings
        if settings.components:
            shared = ComponentContext(calls=self.calls, timeout_seconds=settings.timeout_seconds, run=self.context)
            return Hybrid(settings.components, shared)
        custom = settings.custom_reward_function
        target = custom_target(custom.path, custom.name) if custom.path else None
        return FunctionReward(self.calls, target, self._function_arguments())

    def _function_arguments(self) -> dict[str, Any]:
        given = self.settings.reward_kwargs
        return {key: value for key, value in given.items() if key not in self.own_arguments}

    @property
    def asks_environment(self) -> bool:
        return isinstance(self._reward, Hybrid) and self._reward.asks_environment

    def check(self, data_sources: set[str]) -> None:
        self._reward.check(data_sources)

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        """The score of one trajectory and the seconds it took.

        Raises:
            DeadlineError: a function that cannot be killed did not answer in time.
            BoundaryError: no score could be had; boundary "reward" with the reason.
        """
        started = time.perf_counter()
        if isinstance(self._reward, Hybrid):
            result = await self._reward.score(judged)
        else:
            result = await self._reward.score(judged, deadline)
        result.seconds = time.perf_counter() - started
        return result

    async def close(self) -> None:
        if isinstance(self._reward, Hybrid):
            await self._reward.close()
        await self.calls.close()
