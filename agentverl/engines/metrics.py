"""Metrics of micro-batches and how they become those of a batch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Aggregation = Literal["sum", "mean", "max", "min"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A value of one micro-batch; means are weighted, usually by tokens."""

    value: float
    aggregation: Aggregation = "mean"
    weight: float = 1.0


class MetricAccumulator:
    """Takes in the metrics of one micro-batch after the other. A plain number is a mean of weight 1."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[Metric]] = {}

    def add(self, metrics: Mapping[str, float | Metric]) -> None:
        for name, value in metrics.items():
            metric = value if isinstance(value, Metric) else Metric(float(value))
            known = self._metrics.setdefault(name, [])
            if known and known[0].aggregation != metric.aggregation:
                raise ValueError(f"metric {name!r} is a {metric.aggregation}, it was a {known[0].aggregation} before")
            known.append(metric)

    @classmethod
    def of_ranks(cls, parts: Iterable["MetricAccumulator"]) -> "MetricAccumulator":
        """What all ranks took in."""
        whole = cls()
        for part in parts:
            for name, metrics in part._metrics.items():
                for metric in metrics:
                    whole.add({name: metric})
        return whole

    def result(self) -> dict[str, float]:
        """One number a name; a mean without any weight is left out."""
        combined = {name: _combined(metrics) for name, metrics in self._metrics.items()}
        return {name: value for name, value in combined.items() if value is not None}


def _combined(metrics: list[Metric]) -> float | None:
    match metrics[0].aggregation:
        case "sum":
            return math.fsum(metric.value for metric in metrics)
        case "max":
            return max(metric.value for metric in metrics)
        case "min":
            return min(metric.value for metric in metrics)
    weight = math.fsum(metric.weight for metric in metrics)
    if weight == 0:
        return None
    return math.fsum(metric.value * metric.weight for metric in metrics if metric.weight) / weight
