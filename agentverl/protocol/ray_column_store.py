"""Columns in Ray's object store: written once, read by any process, on one machine without a copy."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import ray

from agentverl.errors import TrainingStoppedError
from agentverl.protocol.bundle import Bundle
from agentverl.protocol.column_store import ColumnStore, Stored

_ANSWER_SECONDS = 10.0
"""An actor that does not answer within this time is taken for lost, with the columns that it put."""


class RayColumnStore(ColumnStore):
    """A column lives as long as the process that put it, and as any process holds its key.

    Columns that are put together are one of Ray's objects, since each of those takes a millisecond.
    """

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        reference, owner = ray.put(Bundle.of(columns)), _this_actor()
        return [_Part(reference, owner, number) for number in range(len(columns))]

    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        parts = [_part(key) for key in keys]
        living = _living({part.owner for part in parts if part.owner is not None})
        return [part.owner is None or part.owner in living for part in parts]

    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        # `ray.get` warns in the actors of workers, where it is called beside the event loop, not on it.
        futures = {reference: reference.future() for reference in dict.fromkeys(_part(key).reference for key in keys)}
        try:
            found = {reference: future.result().columns() for reference, future in futures.items()}
        except ray.exceptions.ObjectLostError as error:
            raise TrainingStoppedError(
                "columns of the step are lost with the runner or the machine that held them: start the run again to go "
                "on from its last checkpoint"
            ) from error
        return [found[_part(key).reference][_part(key).number] for key in keys]

    def drop(self, keys: Sequence[Hashable]) -> None:
        """Nothing: Ray forgets a column with the last of its keys."""


class _Part(NamedTuple):
    """One of the columns that were put together."""

    reference: Any
    owner: Any
    """The actor that put it; None where that is the program itself."""
    number: int


def _part(key: Hashable) -> _Part:
    assert isinstance(key, _Part), f"{key!r} is of another store"
    return key


def _this_actor() -> Any:
    context = ray.get_runtime_context()
    return None if context.get_actor_id() is None else context.current_actor


def _living(actors: set[Any]) -> set[Any]:
    """Those that answer. Ray's own question after an object's place can end the process that asks it (2.60)."""
    asked = {actor.__ray_ready__.remote(): actor for actor in actors}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_SECONDS) if asked else ([], [])
    return {asked[answer] for answer in answered if _succeeded(answer)}


def _succeeded(answer: Any) -> bool:
    try:
        ray.get(answer)
    except ray.exceptions.RayError:  # which one it is depends on how the actor was lost
        return False
    return True
