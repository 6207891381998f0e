"""Rows that belong together, such as the samples of one prompt."""

from collections.abc import Hashable, Iterable

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


def group_statistics(scores: Tensor, index: Index) -> tuple[Tensor, Tensor, Tensor]:
    """(B) each, float64: size, mean and unbiased standard deviation of the scores (B) of each row's group.

    A group of one has the deviation 0.

    Raises:
        BadInputError: an index that does not fit the rows.
    """
    group_of_row, groups = number_keys(index, len(scores))
    group_of_row = group_of_row.to(scores.device)
    values = scores.double()

    def total(of: Tensor) -> Tensor:
        return of.new_zeros(groups).index_add_(0, group_of_row, of)

    size = total(torch.ones_like(values))
    mean = total(values) / size
    # Two passes: a sum of squares less the squared sum would lose rewards that hardly differ.
    variance = total((values - mean[group_of_row]) ** 2) / (size - 1).clamp(min=1)
    return size[group_of_row], mean[group_of_row], variance.sqrt()[group_of_row]
