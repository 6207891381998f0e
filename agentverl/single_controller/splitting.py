"""How the arguments of one call are shared among ranks, and how their results become one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from agentverl.protocol.data_proto import DataProto
from agentverl.single_controller.worker_errors import WorkerClassError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


class Deferred(ABC):
    """An argument that becomes a value where the call runs, so that it need not pass through the controller."""

    @abstractmethod
    def resolve(self) -> Any:
        """The value; may wait for it."""


class Divisible(ABC):
    """A batch that is not there yet, but can be shared all the same."""

    @abstractmethod
    def chunk(self, chunks: int) -> Sequence[Deferred]:
        """As `DataProto.chunk`, without waiting."""


def same_for_all(size: int, arguments: Arguments) -> list[Arguments]:
    """Every rank gets the arguments as they are."""
    return [arguments] * size


def one_for_each(size: int, arguments: Arguments) -> list[Arguments]:
    """Every argument is a list or tuple with one entry a rank.

    Raises:
        WorkerClassError: an argument that is not.
    """
    args, kwargs = arguments
    for value in (*args, *kwargs.values()):
        if not _has_one_for_each(size, value):
            raise WorkerClassError(
                f"DP_COMPUTE takes lists with one entry for each of {size} ranks, got {_described(value)}"
            )
    return [
        (tuple(value[rank] for value in args), {name: value[rank] for name, value in kwargs.items()})
        for rank in range(size)
    ]


def one_for_each_or_same(size: int, arguments: Arguments) -> list[Arguments]:
    """Its own entry for each rank where every argument has one for each, else all of them for all."""
    values = (*arguments[0], *arguments[1].values())
    if values and all(_has_one_for_each(size, value) for value in values):
        return one_for_each(size, arguments)
    return same_for_all(size, arguments)


def chunk_batches(size: int, arguments: Arguments) -> list[Arguments]:
    """Every rank gets a chunk of each batch, which may be empty, and the other arguments as they are.

    Raises:
        WorkerClassError: there is no batch among the arguments.
    """

    def share(value: Any) -> Sequence[Any]:
        return value.chunk(size) if isinstance(value, DataProto | Divisible) else [value] * size

    args, kwargs = arguments
    if not any(isinstance(value, DataProto | Divisible) for value in (*args, *kwargs.values())):
        raise WorkerClassError("a call that is dispatched by rows needs a DataProto among its arguments")
    return one_for_each(
        size, (tuple(share(value) for value in args), {name: share(value) for name, value in kwargs.items()})
    )


def chunk_batches_for_function(size: int, arguments: Arguments) -> list[Arguments]:
    """As `chunk_batches`, where the first argument is a function that every rank gets.

    Raises:
        WorkerClassError: the first argument is none.
    """
    if not arguments[0] or not callable(arguments[0][0]):
        raise WorkerClassError("DP_COMPUTE_PROTO_WITH_FUNC takes a function as its first argument")
    return chunk_batches(size, arguments)


def refuse(size: int, arguments: Arguments) -> list[Arguments]:
    """For what only a handle of one worker may call.

    Raises:
        WorkerClassError: always.
    """
    raise WorkerClassError(
        "a DIRECT_ROLLOUT_METHOD is not called through its group: take one worker by group.resident(rank, ...) or "
        "group.execute_rank_zero(name, ...)"
    )


def concat_batches(results: list[Any]) -> Any:
    """The rows of all ranks in one batch; None where no rank returned anything.

    Raises:
        WorkerClassError: a rank returned something else.
    """
    if all(result is None for result in results):
        return None
    if not all(isinstance(result, DataProto) for result in results):
        kinds = ", ".join(sorted({type(result).__name__ for result in results}))
        raise WorkerClassError(
            f"DP_COMPUTE_PROTO puts DataProtos together, the ranks returned {kinds}; use DP_COMPUTE_METRIC for a list"
        )
    return DataProto.concat(results)


def _has_one_for_each(size: int, value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == size


def _described(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"a {type(value).__name__}{length}"
