"""The columns of a batch: tensors and ragged columns that agree on their rows, and arrays of Python objects."""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentverl.protocol.batch_errors import BatchError, MissingColumnError
from agentverl.protocol.encoding import from_numpy, to_numpy
from agentverl.protocol.ragged import Ragged, Rows, equal_tensors, row_numbers

Column = Tensor | Ragged


def batch_shape(column: Column, num_batch_dims: int = 1) -> torch.Size:
    """The leading dimensions that a column shares with its batch."""
    if isinstance(column, Ragged):
        return torch.Size([len(column)])
    return column.shape[:num_batch_dims]


def equal_columns(one: Column, other: Column) -> bool:
    """Same kind, type, shape and entries, NaN being equal to NaN."""
    if isinstance(one, Ragged) or isinstance(other, Ragged):
        return isinstance(one, Ragged) and one == other
    return equal_tensors(one, other)


def take_rows(column: Column, rows: Tensor) -> Column:
    """A copy of the given rows, in the given order."""
    return column[rows] if isinstance(column, Ragged) else column[rows.to(column.device)]


def concat_columns(name: str, columns: list[Column]) -> Column:
    """The rows of all columns, in order.

    Raises:
        BatchError: ragged and plain columns mixed, or rows of different shapes.
    """
    ragged = [column for column in columns if isinstance(column, Ragged)]
    plain = [column for column in columns if isinstance(column, Tensor)]
    if ragged and plain:
        raise BatchError(
            f"column {name!r} is ragged in one batch and a plain tensor in another: they do not concatenate"
        )
    shapes = {tuple(column.shape[1:]) for column in plain} | {tuple(column.values.shape[1:]) for column in ragged}
    if len(shapes) > 1:
        raise BatchError(
            f"column {name!r} has rows of different shapes {sorted(shapes)}; rows of different lengths need a Ragged"
        )
    return Ragged.concat(ragged) if ragged else torch.cat(plain)


class Columns(MutableMapping[str, Column]):
    """Named columns with the same leading dimensions, `batch_size`; ragged ones have rows of any length.

    Raises:
        BatchError: a column that is not a tensor, or whose leading dimensions differ.
    """

    def __init__(self, columns: Mapping[str, Column] | None = None, batch_size: Iterable[int] | None = None) -> None:
        self._columns: dict[str, Column] = {}
        self._batch_size = None if batch_size is None else torch.Size(batch_size)
        for name, column in (columns or {}).items():
            self[name] = column

    @property
    def batch_size(self) -> torch.Size:
        return torch.Size([0]) if self._batch_size is None else self._batch_size

    @property
    def device(self) -> torch.device | None:
        """Where the columns are, None where there are none."""
        return next((column.device for column in self._columns.values()), None)

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            raise MissingColumnError(f"no column {name!r}; the batch has {', '.join(self._columns) or 'none'}")
        return self._columns[name]

    def __setitem__(self, name: str, column: Column) -> None:
        if not isinstance(column, Tensor | Ragged):
            raise BatchError(f"column {name!r} must be a torch.Tensor or a Ragged, got {type(column).__name__}")
        shape = batch_shape(column, 1 if self._batch_size is None else len(self._batch_size))
        if self._batch_size is not None and shape != self._batch_size:
            raise BatchError(f"column {name!r} has batch size {list(shape)}, the batch has {list(self._batch_size)}")
        if len(shape) == 0:
            raise BatchError(f"column {name!r} is a single value; a column has one entry a row")
        self._batch_size = shape
        self._columns[name] = column

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    # The inherited views would take the number of rows for the number of names.
    def keys(self) -> KeysView[str]:
        return self._columns.keys()

    def values(self) -> ValuesView[Column]:
        return self._columns.values()

    def items(self) -> ItemsView[str, Column]:
        return self._columns.items()

    def __len__(self) -> int:
        """Rows, as a batch is measured in them everywhere."""
        return self.batch_size[0]

    def __bool__(self) -> bool:
        return bool(self._columns)

    def __eq__(self, other: object) -> bool:
        """The same names with equal columns, in any order."""
        if not isinstance(other, Columns):
            return NotImplemented
        return self.keys() == other.keys() and all(equal_columns(self[name], other[name]) for name in self)

    def __hash__(self) -> int:
        raise TypeError("Columns change and are compared by content: they are not hashable")

    def tensor(self, name: str) -> Tensor:
        """A column that must be a plain tensor."""
        column = self[name]
        if isinstance(column, Ragged):
            raise BatchError(f"column {name!r} is ragged where a plain tensor is expected")
        return column

    def ragged(self, name: str) -> Ragged:
        """The ragged column of that name.

        Raises:
            MissingColumnError: there is none.
            BatchError: it is a plain tensor.
        """
        column = self[name]
        if not isinstance(column, Ragged):
            raise BatchError(f"column {name!r} is a plain tensor of shape {tuple(column.shape)}, not a ragged column")
        return column

    def select(self, names: Iterable[str]) -> "Columns":
        """The named columns, not copied."""
        return Columns({name: self[name] for name in names}, self._batch_size)

    def rows(self, index: Rows) -> "Columns":
        """A copy of the chosen rows."""
        if self._batch_size is None:
            return Columns()
        numbers = row_numbers(index, len(self))
        columns = {name: take_rows(column, numbers) for name, column in self._columns.items()}
        return Columns(columns, (len(numbers), *self.batch_size[1:]))

    def to(self, device: torch.device | str) -> "Columns":
        return Columns({name: column.to(device) for name, column in self._columns.items()}, self._batch_size)

    def clone(self) -> "Columns":
        return Columns({name: column.clone() for name, column in self._columns.items()}, self._batch_size)

    def __repr__(self) -> str:
        return f"Columns({', '.join(self._columns)}; batch_size={list(self.batch_size)})"

    def __getstate__(self) -> dict[str, Any]:
        columns = {name: column if isinstance(column, Ragged) else to_numpy(column) for name, column in self.items()}
        return {"columns": columns, "batch_size": None if self._batch_size is None else tuple(self._batch_size)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restored = {
            name: column if isinstance(column, Ragged) else from_numpy(column)
            for name, column in state["columns"].items()
        }
        self._columns = restored
        self._batch_size = None if state["batch_size"] is None else torch.Size(state["batch_size"])


def object_array(values: Iterable[Any]) -> np.ndarray:
    """(B) array with one Python object a row; lists of equal length stay objects instead of becoming a matrix."""
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    for row, value in enumerate(listed):
        array[row] = value
    return array


def copy_containers(value: Any) -> Any:
    """The same value in containers of its own; what they hold (strings, arrays, images) is shared."""
    if type(value) is dict:
        return {key: copy_containers(inner) for key, inner in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(copy_containers(inner) for inner in value)
    return value


def take_objects(array: np.ndarray, rows: Tensor) -> np.ndarray:
    """A copy of the given rows of a column of objects, none of whose containers are shared with the original."""
    taken: np.ndarray = array[rows.numpy()]
    if array.dtype != object or array.ndim != 1:
        return taken
    return object_array(copy_containers(value) for value in taken)


def equal_values(one: Any, other: Any) -> bool:
    """Deep equality of tensors, arrays, containers and scalars, NaN being equal to NaN."""
    if isinstance(one, Tensor | Ragged) and isinstance(other, Tensor | Ragged):
        return equal_columns(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        same_form = type(one) is type(other) and one.shape == other.shape
        return same_form and all(equal_values(a, b) for a, b in zip(one.flat, other.flat, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal_values(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(equal_values(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float | np.floating) and isinstance(other, float | np.floating) and one != one:
        return bool(other != other)
    return bool(one == other)


def union_tensor_dict(one: Columns, other: Columns) -> Columns:
    """Add the columns of `other` to `one`, in place.

    Raises:
        BatchError: different batch sizes, or a column of both that differs.
    """
    if one and other and one.batch_size != other.batch_size:
        raise BatchError(
            f"a union needs one batch size, got {list(one.batch_size)} and {list(other.batch_size)}; "
            "select or concat rows first"
        )
    for name, column in other.items():
        if name in one and not equal_columns(one[name], column):
            raise BatchError(f"column {name!r} is in both batches with different values; rename or pop one")
    for name, column in other.items():
        one[name] = column
    return one


def union_numpy_dict(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the arrays of `other` to `one`, in place; arrays of both must be equal, else BatchError."""
    for name, array in other.items():
        if name in one and not equal_values(one[name], array):
            raise BatchError(f"column {name!r} is in both batches with different values; rename or pop one")
    one.update(other)
    return one
