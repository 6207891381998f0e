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
            # `ray.get` warns in the actors of workers, where it is called beside the event loop, not on it.
            columns: list[Stored] = [future.result() for future in [_future(key) for key in keys]]
        except ray.exceptions.ObjectLostError as error:
            raise BatchError(
                f"a column is not in Ray's object store any more: {' '.join(str(error).split())}"
            ) from error
        return columns

    def drop(self, keys: Sequence[Hashable]) -> None:
        """Nothing: Ray forgets a column with the last of its keys."""

    def close(self) -> None:
        """Nothing, as `drop`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayColumnStore)

    def __hash__(self) -> int:
        return hash(RayColumnStore)

    def __reduce__(self) -> tuple[type[Any], tuple[()]]:
        return RayColumnStore, ()


def _future(key: Any) -> Any:
    return key.future()
