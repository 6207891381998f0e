"""Validation metrics under verl's names: mean@N, std@N, best@k, worst@k and maj@k per data source."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BOOTSTRAP_DRAWS = 1000
BOOTSTRAP_SEED = 42


@dataclass(frozen=True, slots=True)
class ValidationSample:
    """One validated trajectory: its prompt, its numbers (`reward`, `acc`, components) and, if known, its prediction."""

    uid: str
    data_source: str
    values: dict[str, float] = field(default_factory=dict)
    prediction: str | None = None


def validation_metrics(samples: Sequence[ValidationSample]) -> dict[str, float]:
    """Metrics of all samples.

    The core variable is `acc` where it exists, else `reward`; of it the largest N's mean, best and majority stand under
    `val-core/`, everything else under `val-aux/`. best@k and maj@k are bootstrap estimates (verl's: 1,000 draws with
    replacement, seed 42), from a generator of their own, so that validation never moves the global random state.
    """
    metrics: dict[str, float] = {}
    sources: dict[str, list[ValidationSample]] = defaultdict(list)
    for sample in samples:
        sources[sample.data_source].append(sample)
    for source, members in sources.items():
        names = sorted({name for sample in members for name in sample.values})
        core = "acc" if "acc" in names else "reward"
        for name in names:
            for key, value in _metrics_of(name, members).items():
                kind = "val-core" if name == core and _is_core(key, members) else "val-aux"
                metrics[f"{kind}/{source}/{name}/{key}"] = value
    return metrics


def _groups(members: Sequence[ValidationSample]) -> list[list[ValidationSample]]:
    groups: dict[str, list[ValidationSample]] = defaultdict(list)
    for sample in members:
        groups[sample.uid].append(sample)
    return list(groups.values())


def _is_core(key: str, members: Sequence[ValidationSample]) -> bool:
    largest = max(len(group) for group in _groups(members))
    return key in {f"mean@{largest}", f"best@{largest}/mean", f"maj@{largest}/mean"}


def _metrics_of(name: str, members: Sequence[ValidationSample]) -> dict[str, float]:
    collected: dict[str, list[float]] = defaultdict(list)
    for group in _groups(members):
        present = [sample for sample in group if name in sample.values]
        if present:
            for key, value in _group_metrics(name, present).items():
                collected[key].append(value)
    return {key: float(np.mean(values)) for key, values in collected.items()}


def _group_metrics(name: str, group: Sequence[ValidationSample]) -> dict[str, float]:
    values = np.array([sample.values[name] for sample in group], dtype=np.float64)
    count = len(values)
    metrics = {f"mean@{count}": float(values.mean())}
    if count == 1:
        return metrics
    metrics[f"std@{count}"] = float(values.std())
    predictions = [sample.prediction for sample in group]
    for size in _sizes(count):
        draws = np.random.default_rng(BOOTSTRAP_SEED).integers(0, count, size=(BOOTSTRAP_DRAWS, size))
        reductions: dict[str, Callable[[Any], Any]] = {"best": np.max, "worst": np.min}
        for label, reduce in reductions.items():
            reduced = [float(reduce(values[draw])) for draw in draws]
            metrics[f"{label}@{size}/mean"] = float(np.mean(reduced))
            metrics[f"{label}@{size}/std"] = float(np.std(reduced))
        if all(prediction is not None for prediction in predictions):
            votes = [_majority(values[draw], [predictions[index] for index in draw]) for draw in draws]
            metrics[f"maj@{size}/mean"] = float(np.mean(votes))
            metrics[f"maj@{size}/std"] = float(np.std(votes))
    return metrics


def _sizes(count: int) -> list[int]:
    sizes = []
    size = 2
    while size < count:
        sizes.append(size)
        size *= 2
    return [*sizes, count]


def _majority(values: Any, predictions: Sequence[Any]) -> float:
    """The value of the first sample that holds the most frequent prediction; ties go to the first seen."""
    winner = Counter(predictions).most_common(1)[0][0]
    return float(values[predictions.index(winner)])
