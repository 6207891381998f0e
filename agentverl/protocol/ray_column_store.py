"""Columns in Ray's object store: written once, read by any process, on one machine without a copy."""

from collections.abc import Hashable, Sequence
from typing import Any

import ray

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.column_store import ColumnStore, Stored


class RayColumnStore(ColumnStore):
    """A column lives as long as the process that put it, and as any process holds its key."""

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        return [ray.put(column) for column in columns]

    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        try:
            columns: list[Stored] = ray.get(list(keys))
        except ray.exceptions.ObjectLostError as error:
            raise BatchError(
                f"a column is not in Ray's object store any more: {' '.join(str(error).split())}"
            ) from error
        return columns

    def drop(self, keys: Sequence[Hashable]) -> None:
        ray.internal.free(list(keys))

    def close(self) -> None:
        """Nothing: a column goes with the last of its keys."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayColumnStore)

    def __hash__(self) -> int:
        return hash(RayColumnStore)

    def __reduce__(self) -> tuple[type[Any], tuple[()]]:
        return RayColumnStore, ()
