"""How one call of the controller becomes one call for each worker, and their results one result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from agentverl.single_controller import splitting
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker_errors import WorkerClassError


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
    DP_COMPUTE_PROTO_WITH_FUNC = "dp_compute_proto_with_func"
    """As DP_COMPUTE_PROTO; the first argument is a function."""
    DP_COMPUTE_METRIC = "dp_compute_metric"
    """Arguments as DP_COMPUTE_PROTO; a list of results."""
    DIRECT_ROLLOUT_METHOD = "direct_rollout_method"
    """Not called through the group, only on one worker."""


class Execute(StrEnum):
    """Which ranks run."""

    ALL = "all"
    RANK_ZERO = "rank_zero"


@dataclass(frozen=True, slots=True)
class DispatchMode:
    """A way to dispatch: pass one to `register` in place of a `Dispatch`.

    Args:
        split: from the number of parts and the arguments of the call to the arguments of each part.
        collect: from the results in order to the result of the call.
        mesh: there is one part a rank; with the name of a mesh, one a data-parallel rank of it. The ranks of one part
            get the same arguments, and only what the collecting one returns travels. See `Worker.join_mesh`.
    """

    split: Callable[[int, Arguments], list[Arguments]]
    collect: Callable[[list[Any]], Any] = list
    mesh: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSize:
    """What a dispatch function of verl's form may ask of a group."""

    world_size: int


@dataclass(frozen=True, slots=True)
class Registration:
    """How a method of a worker may be called through its group."""

    mode: DispatchMode
    execute_mode: Execute
    blocking: bool
    materialize_futures: bool


Method = TypeVar("Method", bound=Callable[..., Any])
AnyMode = Dispatch | DispatchMode | Mapping[str, Callable[..., Any]]


def register(
    dispatch_mode: AnyMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
) -> Callable[[Method], Method]:
    """Let a worker's method (sync or async) be called through its group.

    Args:
        dispatch_mode: a `Dispatch`, a `DispatchMode`, or verl's `{"dispatch_fn": ..., "collect_fn": ...}`.
        execute_mode: RANK_ZERO runs the method on rank 0 alone, whatever the mode, and gives its result.
        blocking: wait for the results; else the call returns a `Pending` at once. An async method is awaited instead.
        materialize_futures: arguments that are `Pending` are replaced by their results; else each worker fetches its
            share of them by itself, and the controller does not wait.

    Raises:
        WorkerClassError: a mode that does not exist.
    """
    mode = _mode(dispatch_mode)
    if not isinstance(execute_mode, Execute):
        raise WorkerClassError(f"execute_mode must be Execute.ALL or Execute.RANK_ZERO, got {execute_mode!r}")
    if dispatch_mode is Dispatch.RANK_ZERO:
        execute_mode = Execute.RANK_ZERO
    registration = Registration(mode, execute_mode, blocking, materialize_futures)

    def mark(method: Method) -> Method:
        method.__dict__["registration"] = registration
        return method

    return mark


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> DispatchMode:
    """DP_COMPUTE_PROTO over the data-parallel ranks of a mesh that workers joined: those of one share get the same."""
    return DispatchMode(splitting.chunk_batches, splitting.concat_batches, mesh_name)


def register_dispatch_mode(
    dispatch_mode_name: str, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> DispatchMode:
    """Add a mode of verl's form, which is then also `Dispatch.<NAME>`.

    Args:
        dispatch_fn: from `(group, *args, **kwargs)`, of which only `group.world_size` is known, to the same arguments
            with one entry a rank in each.
        collect_fn: from `(group, results)` to the result of the call.

    Raises:
        WorkerClassError: there is a mode of that name.
    """
    if hasattr(Dispatch, dispatch_mode_name):
        raise WorkerClassError(f"there is a dispatch mode {dispatch_mode_name!r} already; take another name")
    mode = _verl_mode(dispatch_fn, collect_fn)
    setattr(Dispatch, dispatch_mode_name, mode)
    return mode


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


def _mode(given: AnyMode) -> DispatchMode:
    if isinstance(given, DispatchMode):
        return given
    if isinstance(given, Dispatch):
        return _MODES[given]
    if isinstance(given, Mapping) and given.keys() == {"dispatch_fn", "collect_fn"}:
        return _verl_mode(given["dispatch_fn"], given["collect_fn"])
    raise WorkerClassError(
        "dispatch_mode must be a Dispatch, a DispatchMode or a dict of dispatch_fn and collect_fn, got " + repr(given)
    )


def _verl_mode(dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]) -> DispatchMode:
    def split(size: int, arguments: Arguments) -> list[Arguments]:
        args, kwargs = dispatch_fn(GroupSize(size), *arguments[0], **arguments[1])
        return splitting.one_for_each(size, (tuple(args), kwargs))

    def collect(results: list[Any]) -> Any:
        return collect_fn(GroupSize(len(results)), results)

    return DispatchMode(split, collect)


_MODES = {
    Dispatch.RANK_ZERO: DispatchMode(splitting.same_for_all),
    Dispatch.ONE_TO_ALL: DispatchMode(splitting.same_for_all),
    Dispatch.ALL_TO_ALL: DispatchMode(splitting.one_for_each_or_same),
    Dispatch.DP_COMPUTE: DispatchMode(splitting.one_for_each),
    Dispatch.DP_COMPUTE_PROTO: DispatchMode(splitting.chunk_batches, splitting.concat_batches),
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC: DispatchMode(splitting.chunk_batches_for_function, splitting.concat_batches),
    Dispatch.DP_COMPUTE_METRIC: DispatchMode(splitting.chunk_batches),
    Dispatch.DIRECT_ROLLOUT_METHOD: DispatchMode(splitting.refuse),
}
