"""What the parts of a reward came to in a training batch, each under its own name."""

from collections import defaultdict
from collections.abc import Sequence

from agentverl.rewards.base import numbers
from agentverl.rollout.episode import EpisodeResult


def component_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """`reward/<component>/{mean,max,min}` over the trajectories that have it; those that failed have none.

    What a reward function reports beside its score counts as a component too, where it is a finite number.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for name, value in numbers(result.components).items():
            values[name].append(value)
    metrics: dict[str, float] = {}
    for name, listed in values.items():
        metrics[f"reward/{name}/mean"] = sum(listed) / len(listed)
        metrics[f"reward/{name}/max"] = max(listed)
        metrics[f"reward/{name}/min"] = min(listed)
    return metrics
