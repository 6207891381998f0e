"""Columns that a batch only refers to: they travel from who made them to who needs them, past the controller."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentverl.errors import TrainingStoppedError
from agentverl.protocol.columns import Column, concat_columns, object_array, take_objects, take_rows
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged

_EMPTY = "referred column "

Stored = Column | np.ndarray
"""A column of a batch: a tensor, a Ragged, or an array of objects."""


class ColumnStore(ABC):
    """Where columns are kept. It is sent along with what it returned, and must work in any process that gets it.

    A column lives until it is dropped, and no longer than its key lives in any process. What all stores of a kind
    returned can be asked of any of them.
    """

    @abstractmethod
    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        """Keep columns; returns a key for each."""

    @abstractmethod
    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        """Whether each column is still there; none is fetched for it."""

    @abstractmethod
    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        """The columns of the keys, in order.

        Raises:
            TrainingStoppedError: a column is not there any more.
        """

    @abstractmethod
    def drop(self, keys: Sequence[Hashable]) -> None:
        """Forget columns; those that are not there do nothing."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class MemoryColumnStore(ColumnStore):
    """Keeps a column in its key: nothing is copied in one process, and a key that is sent takes its column along."""

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        return [_InMemory(column) for column in columns]

    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        return [_in_memory(key).column is not None for key in keys]

    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        columns = [_in_memory(key).column for key in keys]
        if any(column is None for column in columns):
            raise TrainingStoppedError("a column that was dropped is asked for")
        return [column for column in columns if column is not None]

    def drop(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            _in_memory(key).column = None


@dataclass(slots=True, eq=False)
class _InMemory:
    column: Stored | None


def _in_memory(key: Hashable) -> _InMemory:
    assert isinstance(key, _InMemory), f"{key!r} is of another store"
    return key


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
    for name, column, key in zip([*tensors, *arrays], columns, store.put(columns), strict=True):
        block = Block(store, key)
        put_references(referring, name, [RowReference(block, row) for row in range(len(data))], column[:0])
    return referring


def put_references(data: DataProto, name: str, references: Sequence[RowReference], without_rows: Stored) -> None:
    """Let a column of the batch be references, in place.

    Args:
        without_rows: of what kind the column is, which has to be known where a share of the batch has no rows.
    """
    data.non_tensor_batch[name] = object_array(references)
    data.meta_info[_EMPTY + name] = without_rows


def referred(data: DataProto) -> list[str]:
    """The names of the columns that are references."""
    return [name for name in data.non_tensor_batch if _EMPTY + name in data.meta_info]


def resolve(data: DataProto) -> DataProto:
    """The batch with values in place of references; one without any is returned as it is."""
    names = referred(data)
    if not names:
        return data
    resolved = data.select()
    columns = fetched(blocks_of(data))
    for name in names:
        references, empty = resolved.non_tensor_batch.pop(name), resolved.meta_info.pop(_EMPTY + name)
        column = _rows(name, references, columns) if len(references) else empty
        if isinstance(column, np.ndarray):
            resolved.non_tensor_batch[name] = column
        else:
            resolved.batch[name] = column
    return resolved


def blocks_of(data: DataProto) -> list[Block]:
    """What a batch refers to, each block once."""
    return list(dict.fromkeys(one.block for name in referred(data) for one in data.non_tensor_batch[name]))


def held(blocks: Sequence[Block]) -> set[Block]:
    """Those that their stores still hold."""
    found: set[Block] = set()
    for store, members in _by_store(blocks).items():
        there = store.holds([block.key for block in members])
        found.update(block for block, is_there in zip(members, there, strict=True) if is_there)
    return found


def drop(data: DataProto) -> None:
    """Forget the columns that a batch refers to, in all their rows."""
    for store, blocks in _by_store(blocks_of(data)).items():
        store.drop([block.key for block in blocks])


def _by_store(blocks: Sequence[Block]) -> dict[ColumnStore, list[Block]]:
    by_store: dict[ColumnStore, list[Block]] = {}
    for block in blocks:
        by_store.setdefault(block.store, []).append(block)
    return by_store


def fetched(blocks: Sequence[Block]) -> dict[Block, Stored]:
    """Each block's column, fetched once."""
    columns: dict[Block, Stored] = {}
    for store, members in _by_store(blocks).items():
        columns.update(zip(members, store.get([block.key for block in members]), strict=True))
    return columns


def _rows(name: str, references: np.ndarray, columns: Mapping[Block, Stored]) -> Stored:
    """The rows that are referred to, in the order of the references."""
    blocks = dict.fromkeys(one.block for one in references)
    found = [columns[block] for block in blocks]
    starts = itertools.accumulate((len(column) for column in found), initial=0)
    start_of = dict(zip(blocks, starts, strict=False))
    rows = torch.tensor([start_of[one.block] + one.row for one in references], dtype=torch.int64)
    if all(isinstance(column, np.ndarray) for column in found):
        return take_objects(np.concatenate([column for column in found if isinstance(column, np.ndarray)]), rows)
    whole = concat_columns(name, [column for column in found if isinstance(column, torch.Tensor | Ragged)])
    return whole if torch.equal(rows, torch.arange(len(whole))) else take_rows(whole, rows)
