"""DAPO's dynamic sampling: groups whose samples do not differ are refused (Yu et al. 2025, arXiv:2503.14476)."""

from collections.abc import Sequence

from agentverl.algorithms.group_filters import has_signal
from agentverl.errors import BadInputError, TrainingStoppedError
from agentverl.rollout.episode import EpisodeResult, Group
from agentverl.settings.algorithm import FilterGroupsSettings

_SCORE = {"reward", "score", "seq_reward", "seq_final_reward"}
"""verl's names of the trajectory's score; anything else is a component of the reward."""


def earned(result: EpisodeResult) -> float:
    """All that a trajectory earned: its score and the rewards of its turns."""
    return (result.score or 0.0) + sum(turn.reward or 0.0 for output in result.outputs for turn in output.turns)


class GroupFilter:
    """Keeps groups in which the metric differs by more than a tolerance: an exact comparison would keep rounding."""

    def __init__(self, settings: FilterGroupsSettings) -> None:
        self._settings = settings

    def kept(self, groups: Sequence[Group]) -> list[Group]:
        """The groups that something can be learnt from.

        Raises:
            BadInputError: the metric is missing, or no number.
        """
        tolerance = self._settings.tolerance
        return [group for group in groups if has_signal(map(self._value, group.results), tolerance)]

    def check_limit(self, played: int, wanted: int, kept: int) -> None:
        """Whether another round of prompts may be rolled out.

        Raises:
            TrainingStoppedError: `max_num_gen_batches` is used up.
        """
        limit = self._settings.max_num_gen_batches
        if limit and played >= limit * wanted:
            raise TrainingStoppedError(
                f"algorithm.filter_groups.max_num_gen_batches={limit} is used up: {kept} of {played} groups differ in "
                f"{self._settings.metric}, and {wanted} are wanted; raise it, or give prompts that are neither "
                "always nor never solved"
            )

    def _value(self, result: EpisodeResult) -> float:
        metric = self._settings.metric
        if metric in _SCORE:
            return earned(result)
        value = result.components.get(metric)
        if not isinstance(value, int | float):
            known = ", ".join(sorted(result.components)) or "none"
            raise BadInputError(
                f"algorithm.filter_groups.metric={metric}: the reward has no such number; its components: {known}"
            )
        return float(value)
