"""Rows that belong together, such as the samples of one prompt."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from agentverl.errors import BadInputError

Index = np.ndarray | Tensor | Iterable[Hashable]
"""One key a row (integers, strings, uuids, or tuples such as (uid, role)); rows with equal keys belong together."""

Singleton = Literal["zero", "raw"]
"""What a group of one gets, which has no baseline: no advantage, or what its score alone gives, as in verl."""


def number_keys(index: Index, count: int) -> tuple[Tensor, int]:
    """Keys as numbers from 0, in the order in which they first appear.

    Returns:
        (B) int64 numbers, and how many different keys there are.

    Raises:
        BadInputError: not one key for each of `count` rows.
    """
    keys = index.tolist() if isinstance(index, np.ndarray | Tensor) else list(index)
    if len(keys) != count:
        raise BadInputError(f"the index has {len(keys)} keys for {count} rows")
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return torch.from_numpy(np.fromiter(map(numbers.__getitem__, keys), np.int64, count)), len(numbers)


@dataclass(frozen=True, slots=True)
class Groups:
    """B rows in G groups."""

    number: Tensor
    """(B) int64: each row's group, from 0."""
    size: Tensor
    """(G) float64: rows a group."""

    @classmethod
    def of(cls, index: Index, like: Tensor) -> "Groups":
        """The groups of the rows of `like` (B, ...), on its device.

        Raises:
            BadInputError: not one key for each row.
        """
        number, count = number_keys(index, len(like))
        size = torch.bincount(number, minlength=count).double()
        return cls(number.to(like.device), size.to(like.device))

    def among(self, chosen: Tensor) -> "Groups":
        """The same groups of the chosen rows (B, bool) only; each other row is a group of its own."""
        strangers = len(self.size) + torch.arange(len(chosen), device=chosen.device)
        return Groups.of(torch.where(chosen, self.number, strangers), chosen)

    @property
    def alone(self) -> Tensor:
        """(B) bool: the row is its group's only one."""
        return (self.size < 2)[self.number]

    def total(self, values: Tensor) -> Tensor:
        """(B, ...) to (G, ...): sums over each group."""
        return values.new_zeros(len(self.size), *values.shape[1:]).index_add_(0, self.number, values)

    def mean(self, values: Tensor) -> Tensor:
        """(B) to (B): the mean of each row's group."""
        return (self.total(values) / self.size)[self.number]

    def deviation(self, values: Tensor) -> Tensor:
        """(B) to (B): the unbiased standard deviation of each row's group; 0 in a group of one."""
        # Two passes: a sum of squares less the squared sum would lose rewards that hardly differ.
        variance = self.total((values - self.mean(values)) ** 2) / (self.size - 1).clamp(min=1)
        return variance.sqrt()[self.number]

    def best_two(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the groups of two and more: the row of the largest value, that value, and the second largest."""
        order = values.argsort(descending=True, stable=True)
        order = order[self.number[order].argsort(stable=True)]
        starts = (self.size.cumsum(0) - self.size).long()[self.size >= 2]
        best, second = order[starts], order[starts + 1]
        return best, values[best], values[second]


def check_singleton(singleton: str) -> None:
    """Raises BadInputError for a way to treat groups of one that does not exist."""
    if singleton not in ("zero", "raw"):
        raise BadInputError(f"singleton must be 'zero' or 'raw', got {singleton!r}")


def relative_to_group(
    scores: Tensor, groups: Groups, epsilon: float, normalise: bool, singleton: Singleton = "zero"
) -> Tensor:
    """(B) float64: (score - mean) / (deviation + epsilon) within each group; without `normalise` score - mean.

    A group of one gets 0; with `singleton="raw"` its score, divided by 1 + epsilon if `normalise`.
    """
    check_singleton(singleton)
    scores, alone = scores.double(), groups.alone
    relative = scores - groups.mean(scores)
    raw = scores
    if normalise:
        relative, raw = relative / (groups.deviation(scores) + epsilon), raw / (1 + epsilon)
    return torch.where(alone, raw if singleton == "raw" else 0.0, relative)
