"""Several batches become one: their columns, their arrays of objects and their meta_info."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentverl.protocol.batch_errors import BatchError, MissingColumnError
from agentverl.protocol.columns import Columns, concat_columns, equal_values


def same_keys(parts: Sequence[Mapping[str, Any]]) -> None:
    """Raise MissingColumnError where a part has other keys than the first."""
    for number, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            raise MissingColumnError(f"batch {number} has keys {sorted(part)}, batch 0 has {sorted(parts[0])}")


def merge_columns(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, in order."""
    same_keys(parts)
    return Columns({name: concat_columns(name, [part[name] for part in parts]) for name in parts[0]})


def merge_arrays(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of all parts, in order."""
    same_keys(parts)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def merge_meta_info(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A deep copy of all entries; `metrics` are gathered into one dict of lists, the others must agree.

    Raises:
        BatchError: a key with different values.
    """
    merged: dict[str, Any] = {}
    gathered: list[Any] = []
    for part in parts:
        for key, value in part.items():
            if key == "metrics":
                gathered.extend(value if isinstance(value, list | tuple) else [value])
            elif key in merged and not equal_values(merged[key], value):
                raise BatchError(f"Conflicting values for meta_info key {key!r}")
            else:
                merged[key] = value
    if any("metrics" in part for part in parts):
        merged["metrics"] = _dict_of_lists(gathered)
    return copy.deepcopy(merged)


def _dict_of_lists(metrics: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for one in metrics:
        for name, value in one.items():
            lists.setdefault(name, []).append(value)
    return lists
