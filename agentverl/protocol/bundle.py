"""Columns that are put together travel as few: ragged ones of a type as one, which takes a tenth of the time."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from agentverl.protocol.columns import Column
from agentverl.protocol.ragged import Ragged


@dataclass(slots=True)
class Bundle:
    """Several columns; those alike stand one after the other in one of `joined`."""

    joined: list[Column | np.ndarray]
    members: list[list[int]]
    """Of each joined column the numbers of the columns that it holds, in order."""
    rows: list[int]
    """Of each column."""

    @classmethod
    def of(cls, columns: Sequence[Column | np.ndarray]) -> "Bundle":
        """Put columns together."""
        alike: dict[Hashable, list[int]] = {}
        for number, column in enumerate(columns):
            alike.setdefault(_kind(column, number), []).append(number)
        members = list(alike.values())
        joined = [_join([columns[number] for number in numbers]) for numbers in members]
        return cls(joined, members, [len(column) for column in columns])

    def columns(self) -> list[Column | np.ndarray]:
        """The columns, in the order in which they came; alike ones share memory."""
        found: dict[int, Column | np.ndarray] = {}
        for whole, numbers in zip(self.joined, self.members, strict=True):
            found.update(zip(numbers, _parts(whole, [self.rows[number] for number in numbers]), strict=True))
        return [found[number] for number in range(len(self.rows))]


def _kind(column: Column | np.ndarray, number: int) -> Hashable:
    """Equal for columns that can stand one after the other; tensors stay alone, as they are put a few at a time."""
    if isinstance(column, Ragged):
        return "ragged", column.dtype, column.device, column.values.shape[1:]
    if isinstance(column, np.ndarray) and column.dtype == object and column.ndim == 1:
        return "objects"
    return number


def _join(columns: list[Column | np.ndarray]) -> Column | np.ndarray:
    if len(columns) == 1:
        return columns[0]
    ragged = [column for column in columns if isinstance(column, Ragged)]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    return Ragged.concat(ragged) if ragged else np.concatenate(arrays)


def _parts(whole: Column | np.ndarray, rows: list[int]) -> list[Column | np.ndarray]:
    if len(rows) == 1:
        return [whole]
    if isinstance(whole, Ragged):
        return list(whole.parts(rows))
    assert isinstance(whole, np.ndarray), "tensors stay alone"
    return list(np.split(whole, np.cumsum(rows)[:-1]))
