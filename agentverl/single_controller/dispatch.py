"""How one call of the controller becomes one call for each worker, and their results one result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from agentverl.protocol.data_proto import DataProto
from agentverl.single_controller.worker_errors import WorkerClassError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


class Dispatch(StrEnum):
    """Who is called, with which part of the arguments, and what becomes of the results."""

    RANK_ZERO = "rank_zero"
    """Only rank 0, with the arguments as they are; its result."""
    ONE_TO_ALL = "one_to_all"
    """Every rank with the same arguments; a list of results."""
    ALL_TO_ALL = "all_to_all"
    """Where every argument is a list with one entry a rank, each rank gets its own; else as ONE_TO_ALL."""
    DP_COMPUTE = "dp_compute"
    """Every argument is a list with one entry a rank; a list of results."""
    DP_COMPUTE_PROTO = "dp_compute_proto"
    """Each DataProto is cut into one chunk a rank (uneven or empty where rows do not divide), other arguments are the
    same for all; the resulting DataProtos are put together again."""
    DP_COMPUTE_METRIC = "dp_compute_metric"
    """Arguments as DP_COMPUTE_PROTO; a list of results."""


class Execute(StrEnum):
    """Which ranks run."""

    ALL = "all"
    RANK_ZERO = "rank_zero"


@dataclass(frozen=True, slots=True)
class DispatchMode:
    """A way to dispatch: pass one to `register` in place of a `Dispatch`.

    Args:
        split: from world size and the arguments of the call to the arguments of each rank.
        collect: from the results in order of rank to the result of the call.
    """

    split: Callable[[int, Arguments], list[Arguments]]
    collect: Callable[[list[Any]], Any] = list


@dataclass(frozen=True, slots=True)
class Registration:
    """How a method of a worker may be called through its group."""

    mode: DispatchMode
    execute_mode: Execute
    blocking: bool
    materialize_futures: bool


Method = TypeVar("Method", bound=Callable[..., Any])


def register(
    dispatch_mode: Dispatch | DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
) -> Callable[[Method], Method]:
    """Let a worker's method (sync or async) be called through its group.

    Args:
        execute_mode: RANK_ZERO runs the method on rank 0 alone, whatever the mode, and gives its result.
        blocking: wait for the results; else the call returns a `Pending` at once. An async method is awaited instead.
        materialize_futures: arguments that are `Pending` are replaced by their results.

    Raises:
        WorkerClassError: a mode that does not exist.
    """
    if not isinstance(dispatch_mode, Dispatch | DispatchMode):
        raise WorkerClassError(f"dispatch_mode must be a Dispatch or a DispatchMode, got {dispatch_mode!r}")
    if not isinstance(execute_mode, Execute):
        raise WorkerClassError(f"execute_mode must be Execute.ALL or Execute.RANK_ZERO, got {execute_mode!r}")
    if dispatch_mode is Dispatch.RANK_ZERO:
        execute_mode = Execute.RANK_ZERO
    mode = dispatch_mode if isinstance(dispatch_mode, DispatchMode) else _MODES[dispatch_mode]
    registration = Registration(mode, execute_mode, blocking, materialize_futures)

    def mark(method: Method) -> Method:
        method.__dict__["registration"] = registration
        return method

    return mark


def registered_methods(cls: type) -> dict[str, Registration]:
    """The methods of a class that are registered, there or in a class that it inherits from (overriding keeps it).

    Raises:
        WorkerClassError: there is none.
    """
    found: dict[str, Registration] = {}
    for base in reversed(cls.__mro__):
        for name, method in vars(base).items():
            registration = getattr(method, "__dict__", {}).get("registration")
            if isinstance(registration, Registration):
                found[name] = registration
    if not found:
        raise WorkerClassError(
            f"worker class {cls.__qualname__} has no method that its group could call; mark some with "
            "@register(dispatch_mode=Dispatch.ONE_TO_ALL) or another mode"
        )
    return found


def _same_for_all(world_size: int, arguments: Arguments) -> list[Arguments]:
    return [arguments] * world_size


def _one_for_each(world_size: int, arguments: Arguments) -> list[Arguments]:
    args, kwargs = arguments
    for value in (*args, *kwargs.values()):
        if not _has_one_for_each(world_size, value):
            raise WorkerClassError(
                f"DP_COMPUTE takes lists with one entry for each of {world_size} ranks, got {_described(value)}"
            )
    return [
        (tuple(value[rank] for value in args), {name: value[rank] for name, value in kwargs.items()})
        for rank in range(world_size)
    ]


def _one_for_each_or_same(world_size: int, arguments: Arguments) -> list[Arguments]:
    values = (*arguments[0], *arguments[1].values())
    if values and all(_has_one_for_each(world_size, value) for value in values):
        return _one_for_each(world_size, arguments)
    return _same_for_all(world_size, arguments)


def _chunk_batches(world_size: int, arguments: Arguments) -> list[Arguments]:
    def share(value: Any) -> Sequence[Any]:
        return value.chunk(world_size) if isinstance(value, DataProto) else [value] * world_size

    args, kwargs = arguments
    if not any(isinstance(value, DataProto) for value in (*args, *kwargs.values())):
        raise WorkerClassError("a call that is dispatched by rows needs a DataProto among its arguments")
    return _one_for_each(
        world_size, (tuple(share(value) for value in args), {name: share(value) for name, value in kwargs.items()})
    )


def _concat_batches(results: list[Any]) -> Any:
    if all(result is None for result in results):
        return None
    if not all(isinstance(result, DataProto) for result in results):
        kinds = ", ".join(sorted({type(result).__name__ for result in results}))
        raise WorkerClassError(
            f"DP_COMPUTE_PROTO puts DataProtos together, the ranks returned {kinds}; use DP_COMPUTE_METRIC for a list"
        )
    return DataProto.concat(results)


def _has_one_for_each(world_size: int, value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == world_size


def _described(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return f"a {type(value).__name__}{length}"


_MODES = {
    Dispatch.RANK_ZERO: DispatchMode(_same_for_all),
    Dispatch.ONE_TO_ALL: DispatchMode(_same_for_all),
    Dispatch.ALL_TO_ALL: DispatchMode(_one_for_each_or_same),
    Dispatch.DP_COMPUTE: DispatchMode(_one_for_each),
    Dispatch.DP_COMPUTE_PROTO: DispatchMode(_chunk_batches, _concat_batches),
    Dispatch.DP_COMPUTE_METRIC: DispatchMode(_chunk_batches),
}
