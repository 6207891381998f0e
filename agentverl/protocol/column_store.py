"""Columns that a batch only refers to: they travel from who made them to who needs them, past the controller."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.columns import Column, concat_columns, object_array, take_objects, take_rows
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged

_EMPTY = "referred column "

Stored = Column | np.ndarray
"""A column of a batch: a tensor, a Ragged, or an array of objects."""


class ColumnStore(ABC):
    """Where columns are kept. It is sent along with what it returned, and must work in any process that gets it."""

    @abstractmethod
    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        """Keep columns; returns a key for each."""

    @abstractmethod
    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        """The columns of the keys, in order.

        Raises:
            BatchError: a key whose column was dropped.
        """

    @abstractmethod
    def drop(self, keys: Sequence[Hashable]) -> None:
        """Forget columns; keys that are not known do nothing."""

    @abstractmethod
    def close(self) -> None:
        """Forget all columns that this store was given in this process."""


class MemoryColumnStore(ColumnStore):
    """Keeps columns in this process."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, Stored] = {}
        self._count = 0

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        keys: list[Hashable] = list(range(self._count, self._count + len(columns)))
        self._count += len(columns)
        self._columns.update(zip(keys, columns, strict=True))
        return keys

    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        for key in keys:
            if key not in self._columns:
                raise BatchError(f"column {key!r} is not in the store (any more)")
        return [self._columns[key] for key in keys]

    def drop(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            self._columns.pop(key, None)

    def close(self) -> None:
        self._columns.clear()

    def __reduce__(self) -> Any:
        raise BatchError("columns in the memory of one process cannot be referred to in another; use RayColumnStore")


@dataclass(frozen=True, slots=True)
class Block:
    """A column of some rows, kept in a store."""

    store: ColumnStore
    key: Hashable


@dataclass(frozen=True, slots=True)
class RowReference:
    """One row of a column that is kept in a store; a column of a batch may consist of them."""

    block: Block
    row: int


def refer(data: DataProto, names: Sequence[str], store: ColumnStore) -> DataProto:
    """The batch with the named columns in a store, and references in their place; the other columns are its own.

    Rows are selected, repeated and put together as ever; only who resolves the references sees the values.

    Raises:
        MissingColumnError: a name that is not there.
    """
    tensors = [name for name in names if name in data.batch]
    arrays = [name for name in names if name not in data.batch]
    referring = data.select()
    moved = referring.pop(tensors, arrays)
    columns: list[Stored] = [moved.batch[name] for name in tensors]
    columns += [moved.non_tensor_batch[name] for name in arrays]
    # Of what kind a column is has to be known where a share of the batch has no rows.
    empty: dict[str, Stored] = {}
    for name, column, key in zip([*tensors, *arrays], columns, store.put(columns), strict=True):
        block = Block(store, key)
        referring.non_tensor_batch[name] = object_array(RowReference(block, row) for row in range(len(data)))
        empty[_EMPTY + name] = column[:0]
    return DataProto(referring.batch, referring.non_tensor_batch, referring.meta_info | empty)


def referred(data: DataProto) -> list[str]:
    """The names of the columns that are references."""
    return [name for name in data.non_tensor_batch if _EMPTY + name in data.meta_info]


def resolve(data: DataProto) -> DataProto:
    """The batch with values in place of references; one without any is returned as it is."""
    names = referred(data)
    if not names:
        return data
    resolved = data.select()
    for name in names:
        references, empty = resolved.non_tensor_batch.pop(name), resolved.meta_info.pop(_EMPTY + name)
        column = _fetched(name, references) if len(references) else empty
        if isinstance(column, np.ndarray):
            resolved.non_tensor_batch[name] = column
        else:
            resolved.batch[name] = column
    return resolved


def drop(data: DataProto) -> None:
    """Forget the columns that a batch refers to, in all their rows."""
    for store, blocks in _by_store(one.block for name in referred(data) for one in data.non_tensor_batch[name]).items():
        store.drop([block.key for block in blocks])


def _by_store(blocks: Iterable[Block]) -> dict[ColumnStore, list[Block]]:
    """Each block once."""
    by_store: dict[ColumnStore, list[Block]] = {}
    for block in dict.fromkeys(blocks):
        by_store.setdefault(block.store, []).append(block)
    return by_store


def _fetched(name: str, references: np.ndarray) -> Stored:
    """The rows that are referred to, each block fetched once, in the order of the references."""
    by_store = _by_store(one.block for one in references)
    columns = [column for store, blocks in by_store.items() for column in store.get([block.key for block in blocks])]
    starts = itertools.accumulate((len(column) for column in columns), initial=0)
    start_of = dict(zip(itertools.chain.from_iterable(by_store.values()), starts, strict=False))
    rows = torch.tensor([start_of[one.block] + one.row for one in references], dtype=torch.int64)
    if all(isinstance(column, np.ndarray) for column in columns):
        return take_objects(np.concatenate([column for column in columns if isinstance(column, np.ndarray)]), rows)
    whole = concat_columns(name, [column for column in columns if isinstance(column, torch.Tensor | Ragged)])
    return whole if torch.equal(rows, torch.arange(len(whole))) else take_rows(whole, rows)
