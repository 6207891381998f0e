"""What became of a step's groups: how they ended, what they earned, whether they teach anything."""

from collections.abc import Sequence

from agentverl.algorithms.group_filters import has_signal
from agentverl.rollout.episode import Group
from agentverl.trainer.data_metrics import termination_metrics, tool_error_metrics
from agentverl.trainer.group_filter import earned
from agentverl.trainer.reward_metrics import component_metrics

_ROUNDING = 1e-8
"""Difference up to which what samples earned counts as equal."""


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of the groups that a step learns from, at least one; those of endings and tools count failures too."""
    results = [result for group in groups for result in (*group.results, *group.failures)]
    excluded = [group.excluded_fraction for group in groups]
    flat = [group for group in groups if not has_signal(map(earned, group.results), _ROUNDING)]
    return {
        **termination_metrics([result.termination for result in results]),
        **tool_error_metrics(results),
        **component_metrics([result for group in groups for result in group.results]),
        "training/excluded_fraction/mean": sum(excluded) / len(excluded),
        "training/excluded_fraction/max": max(excluded),
        "training/groups_without_signal": len(flat) / len(groups),
    }
