"""The usual reward manager: one call of `compute_score` a trajectory, under a deadline, never a silent 0."""

import time
from collections.abc import Mapping
from typing import Any

from agentverl import blocking, plugins
from agentverl.deadlines import Deadline, OutOfTimeError, bounded
from agentverl.errors import BoundaryError, DeadlineError
from agentverl.rewards.base import RewardInput, RewardManager, RewardResult
from agentverl.rewards.data_sources import scorer_name
from agentverl.rewards.process_pool import ProcessPool, ScorerExhaustedError
from agentverl.rewards.scorer import Scorer, as_result, custom_target


class NaiveRewardManager(RewardManager):
    """Scores with the configured function, else with the scorer of the row's data source.

    Asynchronous functions are awaited, synchronous ones run in a thread, those marked `@killable` in a process.

    Args:
        custom_reward_function: verl's section: `path`, `name`, `reward_kwargs`.
        timeout_seconds: for one call; the trajectory's own deadline may be nearer.
        num_workers: processes for killable scorers.
        memory_bytes: the limit of each of these processes.
        reward_kwargs: further keywords for the function.

    Raises:
        PluginError, SettingsError: the function is not found or takes other arguments.
    """

    def __init__(
        self,
        *,
        custom_reward_function: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
        num_workers: int = 2,
        memory_bytes: int = 2 << 30,
        reward_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        custom = dict(custom_reward_function or {})
        self._settings = {**(custom.get("reward_kwargs") or {}), **(reward_kwargs or {})}
        self._timeout_seconds = timeout_seconds
        self._pool = ProcessPool(num_workers, memory_bytes=memory_bytes)
        self._scorers: dict[str, Scorer] = {}
        self._custom: Scorer | None = None
        if custom.get("path"):
            target = custom_target(str(custom["path"]), str(custom.get("name") or "compute_score"))
            self._custom = Scorer(target, self._settings)

    def check(self, data_sources: set[str]) -> None:
        """Find the scorers of these data sources now, so that what is missing shows before anything starts."""
        for data_source in sorted(data_sources):
            self._scorer_of(data_source)

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        """The score of one trajectory and the seconds it took.

        Raises:
            DeadlineError: a function that cannot be killed did not answer in time.
            BoundaryError: the function raised, or returned no finite number; boundary "reward" with the reason.
        """
        started = time.perf_counter()
        scorer = self._scorer_of(judged.data_source)
        seconds = (deadline or Deadline()).within(self._timeout_seconds).remaining_seconds or 0.0
        try:
            if scorer.minimum_score is not None and not blocking.inline:
                result = await self._in_process(scorer, judged, scorer.minimum_score, seconds)
            else:
                value = await bounded(_call(scorer, judged), None if blocking.inline else seconds)
                result = as_result(value, scorer.target)
        except OutOfTimeError as error:
            raise DeadlineError(f"reward function {scorer.target}: {error}", "reward") from None
        except BoundaryError:
            raise
        except Exception as error:  # a reward function may raise anything; its reason is what the user needs
            reason = f"{type(error).__name__}: {error}{plugins.line_of(error)}"
            raise BoundaryError(f"reward function {scorer.target} failed: {reason}", "reward") from error
        result.seconds = time.perf_counter() - started
        return result

    async def close(self) -> None:
        """Stop the processes."""
        await self._pool.close()

    async def _in_process(self, scorer: Scorer, judged: RewardInput, minimum: float, seconds: float) -> RewardResult:
        arguments = scorer.arguments(judged)
        exhausted = ""
        for _ in range(2):
            try:
                value = await self._pool.call(scorer.target, arguments, timeout_seconds=seconds)
                return as_result(value, scorer.target)
            except ScorerExhaustedError as error:
                exhausted = error.resource
        return RewardResult(score=minimum, components={f"scorer_out_of_{exhausted}": 1.0})

    def _scorer_of(self, data_source: str) -> Scorer:
        if self._custom is not None:
            return self._custom
        if data_source not in self._scorers:
            self._scorers[data_source] = Scorer(scorer_name(data_source), self._settings)
        return self._scorers[data_source]


async def _call(scorer: Scorer, judged: RewardInput) -> Any:
    arguments = scorer.arguments(judged)
    if scorer.is_async:
        return await scorer.function(**arguments)
    value = await blocking.call(scorer.function, **arguments)
    return await value if hasattr(value, "__await__") else value
