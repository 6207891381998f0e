"""A reward manager that judges the trajectories of a prompt together, once the last of them has ended."""

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

from agentverl.deadlines import Deadline
from agentverl.errors import BoundaryError
from agentverl.rewards.base import RewardContext, RewardInput, RewardManager, RewardResult, outcome
from agentverl.rewards.function_calls import FunctionCalls, read
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.rewards.scorer import BatchScorer, custom_target
from agentverl.settings.reward import RewardSettings


class BatchRewardManager(RewardManager):
    """Calls verl's batched form of a reward function, so that it can compare the answers to one prompt.

    A function of the usual form, components and the scorers of data sources are asked about each by itself.

    Raises:
        PluginError, SettingsError: what is configured is not found or takes other arguments.
    """

    scores_groups: ClassVar[bool] = True

    def __init__(self, settings: RewardSettings | None = None, context: RewardContext | None = None) -> None:
        super().__init__(settings or RewardSettings(), context)
        custom = self.settings.custom_reward_function
        target = custom_target(custom.path, custom.name) if custom.path else None
        self._calls = FunctionCalls(self.settings)
        self._scorer: BatchScorer | None = None
        self._single: NaiveRewardManager | None = None
        if target is not None and BatchScorer.fits(target):
            self._scorer = BatchScorer(target, self.settings.reward_kwargs)
        else:
            self._single = NaiveRewardManager(self.settings, self.context)

    @property
    def asks_environment(self) -> bool:
        return self._single is not None and self._single.asks_environment

    def check(self, data_sources: set[str]) -> None:
        if self._single is not None:
            self._single.check(data_sources)

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        result = (await self.score_group([judged]))[0]
        if isinstance(result, BoundaryError):
            raise result
        return result

    async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
        """What came of each trajectory.

        Raises:
            BoundaryError: the batched function has no scores for any.
        """
        if self._single is not None:
            return list(await asyncio.gather(*(outcome(self._single.score(judged)) for judged in group)))
        assert self._scorer is not None
        scorer, started = self._scorer, time.perf_counter()
        values = await self._calls.call(scorer, scorer.batch_arguments(group))
        if isinstance(values, RewardResult):  # the minimum, twice out of time or memory
            values = [values] * len(group)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(group):
            came = f"{len(values)} scores" if isinstance(values, list | tuple) else type(values).__name__
            raise BoundaryError(
                f"reward function {scorer.target} returned {came}; expected a list of {len(group)} scores", "reward"
            )
        results = [_verdict(value, scorer.target) for value in values]
        for result in results:
            if isinstance(result, RewardResult):
                result.seconds = (time.perf_counter() - started) / len(group)
        return results

    async def close(self) -> None:
        await self._calls.close()
        if self._single is not None:
            await self._single.close()


def _verdict(value: object, target: str) -> RewardResult | BoundaryError:
    try:
        return read(value, target)
    except BoundaryError as error:
        return error
