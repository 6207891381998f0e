"""A reward that one function gives: the configured one, else that of the row's data source."""

from collections.abc import Mapping
from typing import Any

from agentverl.deadlines import Deadline
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.data_sources import scorer_name
from agentverl.rewards.function_calls import FunctionCalls
from agentverl.rewards.scorer import Scorer


class FunctionReward:
    """Scores by a function, with further keywords.

    Args:
        target: an installed scorer, `module:function` or `file.py:function`; None leaves it to the data source.

    Raises:
        PluginError, SettingsError: the function is not found or takes other arguments.
    """

    def __init__(self, calls: FunctionCalls, target: str | None, arguments: Mapping[str, Any]) -> None:
        self._calls = calls
        self._arguments = arguments
        self._configured = None if target is None else Scorer(target, arguments)
        self._by_source: dict[str, Scorer] = {}

    def check(self, data_sources: set[str]) -> None:
        """Find the functions of these data sources now."""
        for data_source in sorted(data_sources):
            self.scorer_of(data_source)

    def scorer_of(self, data_source: str) -> Scorer:
        """The function that judges a data source.

        Raises:
            PluginError, SettingsError: there is none, or it takes other arguments.
        """
        if self._configured is not None:
            return self._configured
        if data_source not in self._by_source:
            self._by_source[data_source] = Scorer(scorer_name(data_source), self._arguments)
        return self._by_source[data_source]

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        """The score of one trajectory.

        Raises:
            DeadlineError, BoundaryError: see FunctionCalls.score.
        """
        return await self._calls.score(self.scorer_of(judged.data_source), judged, deadline)
