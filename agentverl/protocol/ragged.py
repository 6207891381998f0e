"""Ragged: a column whose rows have lengths of their own, without padding."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard, overload

import numpy as np
import torch
from torch import Tensor

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.encoding import Packed, pack, unpack

Rows = slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor
"""What selects rows: a slice, integers, or one boolean a row."""


def row_numbers(index: Rows, count: int) -> Tensor:
    """The row numbers (int64, not negative) that `index` selects from `count` rows.

    Raises:
        BatchError: a boolean mask of another length, or a row number out of range.
        TypeError: an index that is neither integers nor booleans.
    """
    if isinstance(index, slice):
        return torch.tensor(range(count)[index], dtype=torch.int64)
    numbers = index if isinstance(index, Tensor) else torch.as_tensor(np.asarray(index))
    if numbers.dtype == torch.bool:
        if numbers.shape != (count,):
            raise BatchError(f"a boolean mask of shape {tuple(numbers.shape)} cannot select from {count} rows")
        return numbers.nonzero().flatten().cpu()
    if numbers.numel() == 0:
        return torch.zeros(0, dtype=torch.int64)
    if numbers.is_floating_point() or numbers.ndim != 1:
        raise TypeError(f"rows are selected by a list of integers or booleans, got {index!r}")
    numbers = numbers.to("cpu", torch.int64)
    if bool(((numbers < -count) | (numbers >= count)).any()):
        raise BatchError(f"row {numbers.tolist()} is out of range for {count} rows")
    return torch.where(numbers < 0, numbers + count, numbers)


class Ragged:
    """B rows of any length, one after the other: row i is `values[offsets[i] : offsets[i + 1]]`.

    Args:
        values: (N, ...) the rows' entries, N their total number.
        offsets: (B + 1) int64, from 0 to N, never decreasing; on the device of `values`.

    Raises:
        BatchError: offsets that do not cut `values` into rows.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        offsets = offsets.to(values.device, torch.int64)
        if values.ndim == 0 or offsets.ndim != 1 or len(offsets) == 0:
            raise BatchError(
                f"a ragged column takes values (N, ...) and offsets (B + 1), got shapes {tuple(values.shape)} and "
                f"{tuple(offsets.shape)}"
            )
        numbers = offsets.cpu().numpy()
        if numbers[0] != 0 or numbers[-1] != len(values) or (numbers[1:] < numbers[:-1]).any():
            raise BatchError(f"offsets must rise from 0 to the number of values {len(values)}, got {offsets.tolist()}")
        self.values = values
        self.offsets = offsets

    @classmethod
    def from_lengths(cls, values: Tensor, lengths: Tensor | Sequence[int]) -> "Ragged":
        """Cut `values` (N, ...) into rows of the given lengths (B), whose sum is N."""
        lengths = torch.as_tensor(lengths, dtype=torch.int64, device=values.device)
        offsets = lengths.new_zeros(len(lengths) + 1)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return cls(values, offsets)

    @classmethod
    def from_list(
        cls, rows: Iterable[Tensor | np.ndarray | Sequence[Any]], dtype: torch.dtype | None = None
    ) -> "Ragged":
        """Rows given one by one; without `dtype`, integers become int64 and Python floats float32."""
        rows = list(rows)
        if dtype is None and _are_alike(rows):
            return cls._from_arrays(rows)
        tensors = [_as_row(row, dtype) for row in rows]
        if not tensors:
            return cls(torch.zeros(0, dtype=dtype or torch.float32), torch.zeros(1, dtype=torch.int64))
        # An empty Python list says nothing about its type, so it must not turn a column of integers into floats.
        filled = [tensor for tensor in tensors if len(tensor)] or tensors[:1]
        kept = filled[0].dtype if dtype is None else dtype
        for tensor in filled:
            kept = torch.promote_types(kept, tensor.dtype) if dtype is None else kept
        return cls.from_lengths(torch.cat([tensor.to(kept) for tensor in filled]), [len(tensor) for tensor in tensors])

    @classmethod
    def _from_arrays(cls, rows: Sequence[np.ndarray]) -> "Ragged":
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls._cut(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(offsets))

    @classmethod
    def _cut(cls, values: Tensor, offsets: Tensor) -> "Ragged":
        """Of offsets that are known to cut `values`: looking at them takes longer than the rest for a single row."""
        column = cls.__new__(cls)
        column.values, column.offsets = values, offsets
        return column

    @classmethod
    def from_padded(cls, padded: Tensor, lengths: Tensor | Sequence[int]) -> "Ragged":
        """The first `lengths[i]` entries of each row of `padded` (B, T, ...)."""
        lengths = torch.as_tensor(lengths, dtype=torch.int64, device=padded.device)
        if len(lengths) != len(padded) or (len(lengths) and int(lengths.max()) > padded.shape[1]):
            raise BatchError(f"lengths {lengths.tolist()} do not fit a padded column of shape {tuple(padded.shape)}")
        kept = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
        return cls.from_lengths(padded[kept], lengths)

    @classmethod
    def concat(cls, columns: Sequence["Ragged"]) -> "Ragged":
        """The rows of all columns, in order."""
        if not columns:
            raise BatchError("cannot concatenate an empty list of ragged columns")
        steps = torch.cat([column.offsets for column in columns]).diff()
        between = torch.tensor([len(column) + 1 for column in columns[:-1]], dtype=torch.int64).cumsum(0) - 1
        is_length = torch.ones(len(steps), dtype=torch.bool)
        is_length[between] = False
        return cls.from_lengths(torch.cat([column.values for column in columns]), steps[is_length.to(steps.device)])

    @property
    def lengths(self) -> Tensor:
        """(B) int64: entries a row."""
        return self.offsets.diff()

    @property
    def row_index(self) -> Tensor:
        """(N) int64: the number of the row that each entry stands in."""
        return _repeated(self.lengths)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.unbind())

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: Rows) -> "Ragged": ...
    def __getitem__(self, index: int | Rows) -> "Tensor | Ragged":
        """A row by number (a view), or the chosen rows as a copy."""
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(f"row {index} is out of range for {len(self)} rows")
            row = int(index) % len(self)
            return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]
        chosen = row_numbers(index, len(self)).to(self.device)
        lengths = self.lengths[chosen]
        starts = lengths.cumsum(0) - lengths
        shift = (self.offsets[chosen] - starts)[_repeated(lengths)]
        return Ragged.from_lengths(self.values[torch.arange(len(shift), device=self.device) + shift], lengths)

    def unbind(self) -> list[Tensor]:
        """The rows, as views."""
        return list(self.values.tensor_split(self.offsets[1:-1].cpu())) if len(self) else []

    def parts(self, counts: Sequence[int]) -> "list[Ragged]":
        """The rows in consecutive parts of so many, as views.

        Raises:
            BatchError: the counts do not sum to the number of rows.
        """
        if sum(counts) != len(self):
            raise BatchError(f"parts of {list(counts)} rows, {sum(counts)} in all, are asked of {len(self)} rows")
        starts = [0, *itertools.accumulate(counts)]
        at = self.offsets[starts].tolist()
        return [
            Ragged._cut(self.values[at[number] : at[number + 1]], self.offsets[start : start + count + 1] - at[number])
            for number, (start, count) in enumerate(zip(starts, counts, strict=False))
        ]

    def to_padded(self, padding_value: float = 0, length: int | None = None) -> Tensor:
        """(B, T, ...), each row followed by `padding_value`; T is `length` or the longest row."""
        longest = int(self.lengths.max()) if len(self) else 0
        width = longest if length is None else length
        if width < longest:
            raise BatchError(f"a row of {longest} entries does not fit a padded length of {width}")
        padded = self.values.new_full((len(self), width, *self.values.shape[1:]), padding_value)
        padded[torch.arange(width, device=self.device) < self.lengths[:, None]] = self.values
        return padded

    def like(self, values: Tensor) -> "Ragged":
        """Other values cut at the same places."""
        return Ragged(values, self.offsets)

    def to(self, device: torch.device | str) -> "Ragged":
        return Ragged(self.values.to(device), self.offsets.to(device))

    def clone(self) -> "Ragged":
        return Ragged(self.values.clone(), self.offsets.clone())

    def __eq__(self, other: object) -> bool:
        """Same type, cuts and values, NaN being equal to NaN."""
        if not isinstance(other, Ragged):
            return NotImplemented
        return torch.equal(self.offsets, other.offsets) and equal_tensors(self.values, other.values)

    def __hash__(self) -> int:
        raise TypeError("a Ragged changes and is compared by content: it is not hashable")

    def __reduce__(self) -> tuple[Callable[..., "Ragged"], tuple[Any, ...]]:
        return _restore, (pack(self.values), pack(self.lengths))

    def __repr__(self) -> str:
        return f"Ragged(rows={len(self)}, values={tuple(self.values.shape)}, dtype={self.dtype})"


def _repeated(counts: Tensor) -> Tensor:
    """Each index of `counts` (B) as often as it says."""
    # numpy's, as torch's wakes all threads for it: 6 and 80 us for 32 rows of 64.
    numbers = np.repeat(np.arange(len(counts)), counts.cpu().numpy())
    return torch.from_numpy(numbers).to(counts.device)


def equal_tensors(one: Tensor, other: Tensor) -> bool:
    """Same type, shape and entries, NaN being equal to NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _are_alike(rows: Sequence[Any]) -> TypeGuard[Sequence[np.ndarray]]:
    """Whether all are arrays of one type, which numpy puts together in a third of the time."""
    first = rows[0] if rows else None
    return isinstance(first, np.ndarray) and all(
        isinstance(row, np.ndarray) and row.ndim and (row.dtype, row.shape[1:]) == (first.dtype, first.shape[1:])
        for row in rows
    )


def _as_row(row: Tensor | np.ndarray | Sequence[Any], dtype: torch.dtype | None) -> Tensor:
    tensor = row if isinstance(row, Tensor) else torch.as_tensor(np.array(row) if isinstance(row, np.ndarray) else row)
    if tensor.ndim == 0:
        raise BatchError(f"a row of a ragged column must be a sequence, got the single value {row!r}")
    return tensor if dtype is None else tensor.to(dtype)


def _restore(values: Packed, lengths: Packed) -> Ragged:
    return Ragged.from_lengths(unpack(values), unpack(lengths))
