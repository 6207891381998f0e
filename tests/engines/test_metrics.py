"""Metrics of micro-batches become those of the batch."""

import math

import pytest

from agentverl.engines.metrics import Metric, MetricAccumulator


def test_each_aggregation_combines_in_its_own_way() -> None:
    collected = MetricAccumulator()
    for value, weight in ((1.0, 3.0), (5.0, 1.0)):
        collected.add(
            {
                "mean": Metric(value, "mean", weight),
                "sum": Metric(value, "sum"),
                "max": Metric(value, "max"),
                "min": Metric(value, "min"),
                "plain": value,
            }
        )
    assert collected.result() == {"mean": 2.0, "sum": 6.0, "max": 5.0, "min": 1.0, "plain": 3.0}


def test_what_has_no_weight_counts_nowhere() -> None:
    collected = MetricAccumulator()
    collected.add({"share": Metric(math.nan, "mean", 0.0)})
    assert collected.result() == {}
    collected.add({"share": Metric(0.25, "mean", 4.0)})
    assert collected.result() == {"share": 0.25}


def test_a_metric_keeps_its_kind() -> None:
    collected = MetricAccumulator()
    collected.add({"loss": Metric(1.0, "sum")})
    with pytest.raises(ValueError, match="is a mean, it was a sum"):
        collected.add({"loss": 1.0})
