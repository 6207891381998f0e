"""One row becomes several: columns are cut along their second dimension, or folded into further batch dimensions."""

from collections.abc import Mapping

import numpy as np
import torch

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.columns import Column
from agentverl.protocol.ragged import Ragged


def unfold_column(name: str, column: Column, n_split: int) -> Column:
    """(B, T, ...) to (B * n_split, T / n_split, ...); a ragged row is cut into equal parts of its own length."""
    if isinstance(column, Ragged):
        if bool((column.lengths % n_split).any()):
            raise BatchError(f"column {name!r} has rows whose lengths do not divide by {n_split}")
        return Ragged.from_lengths(column.values, (column.lengths // n_split).repeat_interleave(n_split))
    return column.reshape(_unfolded(name, column.shape, n_split))


def unfold_array(name: str, array: np.ndarray, n_split: int) -> np.ndarray:
    """(B, T, ...) to (B * n_split, T / n_split, ...)."""
    return array.reshape(_unfolded(name, array.shape, n_split))


def _unfolded(name: str, shape: tuple[int, ...], n_split: int) -> tuple[int, ...]:
    if len(shape) < 2 or shape[1] % n_split:
        raise BatchError(f"column {name!r} of shape {tuple(shape)} cannot be cut into {n_split} along dimension 1")
    return (shape[0] * n_split, shape[1] // n_split, *shape[2:])


def fold_columns(columns: Mapping[str, Column], rows: int) -> dict[str, Column]:
    """(B, ...) to (rows, B / rows, ...)."""
    folded: dict[str, Column] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            raise BatchError(f"column {name!r} is ragged and cannot be folded")
        folded[name] = column.reshape(rows, column.shape[0] // rows, *column.shape[1:])
    return folded


def fold_arrays(arrays: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """(B, ...) to (rows, B / rows, ...)."""
    return {name: array.reshape(rows, len(array) // rows, *array.shape[1:]) for name, array in arrays.items()}


def unfold_batch_columns(columns: Mapping[str, Column], dims: int) -> dict[str, Column]:
    """The first `dims` dimensions become one."""
    return {
        name: column if isinstance(column, Ragged) else torch.flatten(column, 0, dims - 1)
        for name, column in columns.items()
    }


def unfold_batch_arrays(arrays: Mapping[str, np.ndarray], dims: int) -> dict[str, np.ndarray]:
    """The first `dims` dimensions become one."""
    return {name: array.reshape(-1, *array.shape[dims:]) for name, array in arrays.items()}
