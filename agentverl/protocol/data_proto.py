"""DataProto, the batch that travels: columns of tensors, columns of objects, and what holds for all rows."""

import copy
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from agentverl.protocol.batch_errors import BatchError, MissingColumnError
from agentverl.protocol.columns import (
    Column,
    Columns,
    batch_shape,
    equal_values,
    object_array,
    take_objects,
    union_numpy_dict,
    union_tensor_dict,
)
from agentverl.protocol.merging import merge_arrays, merge_columns, merge_meta_info
from agentverl.protocol.mini_batches import mini_batch_rows
from agentverl.protocol.ragged import Ragged, Rows, row_numbers
from agentverl.protocol.unfolding import unfold_array, unfold_column

PADDING_FLAG = "_verl_auto_padding"


@dataclass
class DataProtoItem:
    """One row of a batch; `ragged` names the columns that were ragged there."""

    batch: dict[str, Tensor] = field(default_factory=dict)
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)
    ragged: frozenset[str] = frozenset()


class DataProto:
    """B rows. Choosing rows copies them and `meta_info`, so no two batches share anything that changes.

    Args:
        batch: columns with leading dimension B, plain tensors or `Ragged`; a plain dict is taken as well.
        non_tensor_batch: arrays of B entries, mostly of Python objects.
        meta_info: what holds for the whole batch.

    Raises:
        BatchError: columns that do not have the same number of rows.
    """

    def __init__(
        self,
        batch: Mapping[str, Column] | None = None,
        non_tensor_batch: dict[str, np.ndarray] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self.batch = batch if isinstance(batch, Columns) else Columns(batch)
        self.non_tensor_batch: dict[str, np.ndarray] = {} if non_tensor_batch is None else non_tensor_batch
        self.meta_info: dict[str, Any] = {} if meta_info is None else meta_info
        self.check_consistency()

    # Making one

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Column] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> "DataProto":
        """Columns given by kind; `non_tensors` that are no arrays become arrays of objects.

        Raises:
            BatchError: columns of different lengths, or objects beside several batch dimensions.
        """
        if num_batch_dims < 1 or (non_tensors and num_batch_dims != 1):
            raise BatchError(f"num_batch_dims must be 1 beside non_tensors and at least 1, got {num_batch_dims}")
        shape = next((batch_shape(column, num_batch_dims) for column in (tensors or {}).values()), None)
        arrays = {
            name: values if isinstance(values, np.ndarray) else object_array(values)
            for name, values in (non_tensors or {}).items()
        }
        meta_info = dict(meta_info or {}) | ({PADDING_FLAG: True} if auto_padding else {})
        return cls(Columns(tensors, shape), arrays, meta_info)

    @classmethod
    def from_single_dict(
        cls,
        data: Mapping[str, Column | np.ndarray],
        meta_info: dict[str, Any] | None = None,
        auto_padding: bool = False,
    ) -> "DataProto":
        """Tensors and ragged columns go to `batch`, arrays to `non_tensor_batch`; BatchError for anything else."""
        tensors: dict[str, Column] = {}
        arrays: dict[str, np.ndarray] = {}
        for name, values in data.items():
            if isinstance(values, Tensor | Ragged):
                tensors[name] = values
            elif isinstance(values, np.ndarray):
                arrays[name] = values
            else:
                raise BatchError(f"Unsupported type in data {type(values)} of {name!r}: give a tensor, Ragged or array")
        return cls.from_dict(tensors, arrays, meta_info, auto_padding=auto_padding)

    @classmethod
    def from_tensordict(cls, tensor_dict: Any, meta_info: dict[str, Any] | None = None) -> "DataProto":
        """From a TensorDict: NonTensorData becomes meta_info, stacks of it objects, jagged tensors ragged columns."""
        from agentverl.protocol.tensordicts import split_tensordict  # tensordict is optional

        tensors, arrays, found = split_tensordict(tensor_dict)
        return cls.from_dict(tensors, arrays, found | (meta_info or {}), num_batch_dims=len(tensor_dict.batch_size))

    def to_tensordict(self) -> Any:
        """One TensorDict with the columns, the objects and the entries of meta_info; ragged columns become jagged."""
        from agentverl.protocol.tensordicts import make_tensordict  # tensordict is optional

        return make_tensordict(len(self), self.batch, self.non_tensor_batch, self.meta_info)

    # Looking at it

    def __len__(self) -> int:
        if self.batch:
            return len(self.batch)
        return next((len(array) for array in self.non_tensor_batch.values()), len(self.batch))

    @overload
    def __getitem__(self, item: int) -> DataProtoItem: ...
    @overload
    def __getitem__(self, item: Rows) -> "DataProto": ...
    def __getitem__(self, item: int | Rows) -> "DataProto | DataProtoItem":
        """A row by number, or the chosen rows (slice, integers, booleans) as a batch of their own."""
        if isinstance(item, int | np.integer):
            return self._row(int(item))
        if not isinstance(item, slice | list | tuple | np.ndarray | Tensor):
            raise TypeError(f"Indexing with {type(item)} is not supported; use int, slice, list, array or tensor")
        return self.select_idxs(item)

    def _row(self, number: int) -> DataProtoItem:
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} is out of range for {len(self)} rows")
        row = self.select_idxs([number])
        return DataProtoItem(
            {name: column[0] for name, column in row.batch.items()},
            {name: array[0] for name, array in row.non_tensor_batch.items()},
            row.meta_info,
            frozenset(name for name, column in row.batch.items() if isinstance(column, Ragged)),
        )

    @property
    def _has_columns(self) -> bool:
        return bool(self.batch or self.non_tensor_batch)

    def check_consistency(self) -> None:
        """Raise BatchError where an array of objects is no array or has another number of rows."""
        for name, array in self.non_tensor_batch.items():
            if not isinstance(array, np.ndarray):
                raise BatchError(f"non_tensor_batch[{name!r}] must be a numpy array, got {type(array).__name__}")
            if array.ndim == 0 or len(array) != len(self):
                raise BatchError(f"key {name} length {array.shape} is not equal to batch size {len(self)}")

    def get_data_info(self) -> str:
        """One line a column: name, kind, shape and type."""
        lines = [f"rows: {len(self)}"]
        for name, column in self.batch.items():
            values = column.values if isinstance(column, Ragged) else column
            kind = "ragged" if isinstance(column, Ragged) else "tensor"
            lines.append(f"{name}: {kind} {tuple(values.shape)} {values.dtype}")
        lines += [f"{name}: array {array.shape} {array.dtype}" for name, array in self.non_tensor_batch.items()]
        return "\n".join([*lines, f"meta_info: {', '.join(self.meta_info) or 'empty'}"])

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors and of the arrays themselves, without the objects that arrays point to."""
        tensors = (column.values if isinstance(column, Ragged) else column for column in self.batch.values())
        return sum(tensor.nbytes for tensor in tensors) + sum(array.nbytes for array in self.non_tensor_batch.values())

    def __repr__(self) -> str:
        return f"DataProto(rows={len(self)}, batch={list(self.batch)}, non_tensor_batch={list(self.non_tensor_batch)})"

    # Columns

    def to(self, device: torch.device | str) -> "DataProto":
        """Move the columns, in place."""
        self.batch = self.batch.to(device)
        return self

    def select(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        deepcopy: bool = False,
    ) -> "DataProto":
        """A batch of the named columns (None: all of a kind), which stay this batch's own unless `deepcopy`.

        Raises:
            MissingColumnError: a name that is not there.
        """
        batch = self.batch.select(self.batch if batch_keys is None else batch_keys)
        arrays = _named(self.non_tensor_batch, non_tensor_batch_keys, "non_tensor_batch")
        meta = _named(self.meta_info, meta_info_keys, "meta_info")
        if deepcopy:
            return DataProto(batch.clone(), copy.deepcopy(arrays), copy.deepcopy(meta))
        return DataProto(batch, arrays, copy.deepcopy(meta))

    def pop(
        self,
        batch_keys: Sequence[str] | None = None,
        non_tensor_batch_keys: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
    ) -> "DataProto":
        """Move the named columns out into a batch of their own; MissingColumnError leaves this one as it was."""
        popped = self.select(batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ())
        for name in batch_keys or ():
            del self.batch[name]
        for name in non_tensor_batch_keys or ():
            del self.non_tensor_batch[name]
        for name in meta_info_keys or ():
            del self.meta_info[name]
        return popped

    def rename(
        self, old_keys: str | Sequence[str] | None = None, new_keys: str | Sequence[str] | None = None
    ) -> "DataProto":
        """Rename columns of `batch`, in place; as many new names as old ones."""
        olds, news = _names(old_keys), _names(new_keys)
        if len(olds) != len(news):
            raise BatchError(f"rename needs as many new keys as old ones, got {len(olds)} old and {len(news)} new")
        renamed = {old: self.batch[old] for old in olds}
        for old in olds:
            del self.batch[old]
        for old, new in zip(olds, news, strict=True):
            self.batch[new] = renamed[old]
        return self

    def union(self, other: "DataProto") -> "DataProto":
        """Add the columns and meta_info of `other`, in place; what both have must be equal (NaN equals NaN).

        Raises:
            BatchError: a different number of rows, or different values under one name.
        """
        if self._has_columns and other._has_columns and len(self) != len(other):
            raise BatchError(f"a union needs batches of identical batch size, got {len(self)} and {len(other)} rows")
        for key, value in other.meta_info.items():
            if key in self.meta_info and not equal_values(self.meta_info[key], value):
                raise BatchError(f"meta_info {key!r} is in both batches with different values")
        union_tensor_dict(self.batch, other.batch)
        union_numpy_dict(self.non_tensor_batch, other.non_tensor_batch)
        self.meta_info.update(copy.deepcopy(other.meta_info))
        return self

    # Rows

    def select_idxs(self, idxs: Rows) -> "DataProto":
        """The chosen rows, by number or by one boolean a row."""
        numbers = row_numbers(idxs, len(self))
        arrays = {name: take_objects(array, numbers) for name, array in self.non_tensor_batch.items()}
        return DataProto(self.batch.rows(numbers), arrays, copy.deepcopy(self.meta_info))

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        """The rows of a slice; negative and open ends as in Python."""
        return self.select_idxs(range(len(self))[start:end:step])

    def reorder(self, indices: Rows) -> None:
        """Put the rows in another order, in place."""
        ordered = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch

    def chunk(self, chunks: int) -> list["DataProto"]:
        """Exactly `chunks` batches of consecutive rows, sizes differing by at most one (larger first, some empty)."""
        if chunks < 1:
            raise BatchError(f"chunk needs at least one chunk, got {chunks}")
        size, larger = divmod(len(self), chunks)
        stops = np.cumsum([size + (number < larger) for number in range(chunks)]).tolist()
        return [self.slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]

    def split(self, split_size: int) -> list["DataProto"]:
        """Batches of `split_size` consecutive rows, the last one what remains."""
        if split_size < 1:
            raise BatchError(f"split needs at least one row a batch, got {split_size}")
        return [self.slice(start, start + split_size) for start in range(0, len(self), split_size)]

    @staticmethod
    def concat(data: Sequence["DataProto"]) -> "DataProto":
        """The rows of all batches, in order; batches without any column only add their meta_info.

        `meta_info["metrics"]` (a dict or a list of dicts each) becomes one dict of lists; other entries must agree.

        Raises:
            BatchError: nothing to concatenate, rows of different shapes, or different values of one meta_info key.
            MissingColumnError: batches with different columns.
        """
        if not data:
            raise BatchError("cannot concatenate an empty list of batches")
        meta_info = merge_meta_info([one.meta_info for one in data])
        parts = [one for one in data if one._has_columns]
        if not parts:
            return DataProto(meta_info=meta_info)
        return DataProto(
            merge_columns([part.batch for part in parts]),
            merge_arrays([part.non_tensor_batch for part in parts]),
            meta_info,
        )

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":
        """Each row `repeat_times` times, copies side by side (0011) or the batch over and over (0101)."""
        rows = np.arange(len(self))
        return self.select_idxs(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | Tensor) -> "DataProto":
        """Row i `repeat_times[i]` times."""
        times = np.asarray(repeat_times, dtype=np.int64)
        if times.shape != (len(self),):
            raise BatchError(f"sample_level_repeat needs one count for each of {len(self)} rows, got {times.shape}")
        return self.select_idxs(np.repeat(np.arange(len(self)), times))

    def unfold_column_chunks(self, n_split: int, split_keys: Sequence[str] | None = None) -> "DataProto":
        """Each row becomes `n_split`: the named columns are cut along their second dimension, others repeated."""
        split = set(split_keys or ())
        for name in split:
            if name not in self.batch and name not in self.non_tensor_batch:
                raise MissingColumnError(f"no column {name!r} to split")
        repeated = self.repeat(n_split)
        for name in split & set(self.batch):
            repeated.batch[name] = unfold_column(name, self.batch[name], n_split)
        for name in split & set(self.non_tensor_batch):
            repeated.non_tensor_batch[name] = unfold_array(name, self.non_tensor_batch[name], n_split)
        return repeated

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator["DataProto"]:
        """Mini-batches of `mini_batch_size` rows, `epochs` times over all rows, in order unless `shuffle` is given.

        `dataloader_kwargs` knows `shuffle` (the order follows from `seed`) and `drop_last`; without the latter, rows
        that do not divide raise BatchError.
        """
        batches = mini_batch_rows(len(self), mini_batch_size, epochs, seed, dataloader_kwargs or {})
        return (self.select_idxs(rows) for rows in batches)

    def is_padding_enabled(self) -> bool:
        """Whether the batch was made with `auto_padding`; uneven batches work in any case."""
        return bool(self.meta_info.get(PADDING_FLAG, False))

    def padding(self, padding_size: int, padding_candidate: str = "last") -> None:
        """Append copies of the first or the last row, in place."""
        if padding_candidate not in ("first", "last"):
            raise BatchError(f"padding_candidate must be 'first' or 'last', got {padding_candidate!r}")
        if padding_size and not len(self):
            raise BatchError("an empty batch has no row to pad with")
        rows = np.arange(len(self))
        source = 0 if padding_candidate == "first" else len(self) - 1
        self.reorder(np.concatenate([rows, np.full(padding_size, source, dtype=rows.dtype)]))

    # Disk

    def save_to_disk(self, filepath: str | os.PathLike[str]) -> None:
        """Write the batch as one pickle, tensors as numpy arrays."""
        Path(filepath).write_bytes(pickle.dumps(self))

    @staticmethod
    def load_from_disk(filepath: str | os.PathLike[str]) -> "DataProto":
        """Read what `save_to_disk` wrote; a pickle runs code, so only files of your own."""
        data = pickle.loads(Path(filepath).read_bytes())
        if not isinstance(data, DataProto):
            raise BatchError(f"{os.fspath(filepath)} holds a {type(data).__name__}, not a DataProto")
        return data


def _named(values: dict[str, Any], names: Sequence[str] | None, where: str) -> dict[str, Any]:
    for name in names or ():
        if name not in values:
            raise MissingColumnError(f"no {name!r} in {where}; it has {', '.join(values) or 'nothing'}")
    return {name: values[name] for name in (values if names is None else names)}


def _names(names: str | Sequence[str] | None) -> list[str]:
    if isinstance(names, str):
        return [names]
    if names is None or isinstance(names, Sequence):
        return list(names or ())
    raise TypeError(f"keys are a name or a list of names, got {type(names).__name__}")
