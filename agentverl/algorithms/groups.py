"""Rows that belong together: the samples of one prompt, and the sequences of one trajectory."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentverl.errors import BadInputError

Index = np.ndarray | Tensor | Iterable[Hashable]
"""One key a row (integers, strings, uuids, or tuples such as (uid, role)); rows with equal keys belong together."""


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
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64), len(numbers)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of each group. A trajectory is one member of a group, however many sequences it has there."""

    of_row: Tensor
    """(B) int64: the member that a row belongs to."""
    group: Tensor
    """(M) int64: the group of a member."""
    trajectory: Tensor
    """(M) int64: the trajectory of a member."""
    of_trajectory: Tensor
    """(B) int64: the trajectory that a row belongs to."""
    groups: int
    trajectories: int

    @classmethod
    def from_index(cls, index: Index, trajectory_index: Index | None, count: int) -> "Members":
        """Without `trajectory_index` each of the `count` rows is a trajectory of its own."""
        group_of_row, groups = number_keys(index, count)
        of_trajectory, trajectories = (
            (torch.arange(count), count) if trajectory_index is None else number_keys(trajectory_index, count)
        )
        pairs = torch.stack([group_of_row, of_trajectory])
        distinct, of_row = torch.unique(pairs, dim=1, return_inverse=True)
        return cls(of_row, distinct[0], distinct[1], of_trajectory, groups, trajectories)

    def scores(self, row_scores: Tensor) -> Tensor:
        """(M) float64: the score of each member's trajectory, which is the sum over all of its rows (B)."""
        per_trajectory = row_scores.new_zeros(self.trajectories, dtype=torch.float64)
        per_trajectory.index_add_(0, self.of_trajectory.to(row_scores.device), row_scores.double())
        return per_trajectory[self.trajectory]

    def statistics(self, scores: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Number, mean and unbiased standard deviation of the counted scores in each member's group.

        Args:
            scores: (M) float64.
            counted: (M) bool; members that do not count still get their group's statistics.

        Returns:
            (M) each; mean 0 for a group without counted members, deviation 0 for one with fewer than two.
        """
        weights = counted.double()
        number = self._sum(weights)
        mean = self._sum(scores * weights) / number.clamp(min=1)
        # Two passes: a sum of squares less the squared sum would lose rewards that hardly differ.
        variance = self._sum((scores - mean[self.group]) ** 2 * weights) / (number - 1).clamp(min=1)
        return number[self.group], mean[self.group], variance.sqrt()[self.group]

    def _sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.groups).index_add_(0, self.group.to(values.device), values)
