"""Columns in Ray's object store: written once, read by any process, on one machine without a copy."""

from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from agentverl.errors import TrainingStoppedError
from agentverl.protocol.column_store import ColumnStore, Stored

_ANSWER_SECONDS = 10.0
"""A process that does not say within this time whether it holds a column is taken to hold none."""
_MOST_AT_ONCE = 64


class RayColumnStore(ColumnStore):
    """A column lives as long as the process that put it, and as any process holds its key.

    Columns that are put together are one of Ray's objects, since each of those takes a millisecond.
    """

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        reference = ray.put(list(columns))
        return [_Part(reference, number) for number in range(len(columns))]

    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        references = list(dict.fromkeys(_part(key).reference for key in keys))
        found = _locations(references)
        return [_is_somewhere(found.get(_part(key).reference)) for key in keys]

    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        # `ray.get` warns in the actors of workers, where it is called beside the event loop, not on it.
        futures = {reference: reference.future() for reference in dict.fromkeys(_part(key).reference for key in keys)}
        try:
            found = {reference: future.result() for reference, future in futures.items()}
        except ray.exceptions.ObjectLostError as error:
            raise TrainingStoppedError(
                "columns of the step are lost with the runner or the machine that held them: start the run again to go "
                f"on from its last checkpoint ({' '.join(str(error).split())})"
            ) from error
        return [found[_part(key).reference][_part(key).number] for key in keys]

    def drop(self, keys: Sequence[Hashable]) -> None:
        """Nothing: Ray forgets a column with the last of its keys."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the columns that were put together."""

    reference: Any
    number: int


def _part(key: Hashable) -> _Part:
    assert isinstance(key, _Part), f"{key!r} is of another store"
    return key


def _is_somewhere(found: dict[str, Any] | None) -> bool:
    return found is not None and bool(found["node_ids"] or found["did_spill"])


def _locations(references: list[Any]) -> dict[Any, Any]:
    """Of each object where it is, of those whose owners answer."""
    try:
        return _asked(references)
    except ray.exceptions.GetTimeoutError:  # says not of which
        with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
            found = threads.map(_asked_alone, references)
        return {reference: place for part in found for reference, place in part.items()}


def _asked_alone(reference: Any) -> dict[Any, Any]:
    try:
        return _asked([reference])
    except ray.exceptions.GetTimeoutError:
        return {}


def _asked(references: list[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = ray.experimental.get_object_locations(references, timeout_ms=int(_ANSWER_SECONDS * 1000))
    return found
