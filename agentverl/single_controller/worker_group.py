"""WorkerGroup: the workers of one role, called as if they were one object."""

import asyncio
import difflib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agentverl.single_controller.dispatch import Execute, Registration, registered_methods
from agentverl.single_controller.pending import Pending, Started
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker import MeshRank, Worker
from agentverl.single_controller.worker_errors import WorkerClassError

logger = logging.getLogger(__name__)


class WorkerGroup(ABC):
    """Every registered method of the worker class is a method of its group: `group.update_actor(batch)`.

    A method that is async on the worker is awaited on the group. Subclass it for another launcher, and say there how a
    method is started on one rank.

    Args:
        worker_cls: the class of the workers, which has registered methods.
        world_size: how many workers there are, at least 1.

    Raises:
        WorkerClassError: a class without registered methods, or no worker at all.
    """

    def __init__(self, worker_cls: Any, world_size: int) -> None:
        if not (isinstance(worker_cls, type) and issubclass(worker_cls, Worker)):
            raise WorkerClassError(f"a worker class must inherit from Worker, got {worker_cls!r}")
        if world_size < 1:
            raise WorkerClassError(f"a group needs at least one worker, got {world_size}")
        self.worker_cls = worker_cls
        self.world_size = world_size
        self._methods = registered_methods(worker_cls)
        self._meshes: dict[str, list[MeshRank]] = {}

    @abstractmethod
    def start(self, rank: int, method: str, arguments: Arguments, *, returns: bool = True) -> Started:
        """Start a method on one rank and return at once; without `returns` only its failure is of interest."""

    @abstractmethod
    def gather(self, started: Sequence[Started]) -> list[Any]:
        """Wait for all results; raises as soon as one rank fails, even where others never end."""

    @abstractmethod
    def run_async(
        self, rank: int, method: str, arguments: Arguments, *, returns: bool = True
    ) -> Coroutine[Any, Any, Any]:
        """A coroutine that runs an async method on one rank; cancelling it cancels the method."""

    @abstractmethod
    def resident(self, rank: int, name: str) -> Any:
        """What `worker.<name>()` of one rank returns, where it lives: its async methods are awaited there.

        Of another process, the methods and properties of the class may be used that the method is annotated with.
        """

    @abstractmethod
    def restart(self, rank: int) -> None:
        """End the worker of one rank, whatever it does, and make it anew; for workers that do not talk to each other.

        Raises:
            WorkerError: it raised while it was made, or its process does not come up.
        """

    @abstractmethod
    def end_rank(self, rank: int) -> None:
        """End the worker of one rank, whatever it does; calls of it fail from then on, until it is restarted."""

    @abstractmethod
    def close(self) -> None:
        """Close all workers; may be called twice."""

    def _where(self, rank: int, method: str) -> str:
        """A rank and its method, for messages."""
        return f"rank {rank} of {self.world_size}, {self.worker_cls.__qualname__}.{method}"

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("_methods", {})
        if name not in methods:
            nearest = difflib.get_close_matches(name, methods, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise AttributeError(
                f"{type(self).__name__} has no method {name!r}{hint} Registered: {', '.join(sorted(methods))}"
            )
        is_async = inspect.iscoroutinefunction(inspect.unwrap(getattr(self.worker_cls, name)))
        call = self._call_async if is_async else self._call

        def method(*args: Any, **kwargs: Any) -> Any:
            return call(name, methods[name], (args, kwargs))

        method.__name__ = name
        return method

    def execute_all_async(self, method: str, *args: Any, **kwargs: Any) -> Pending:
        """Start any method, registered or not, on every rank with the same arguments."""
        started = [self.start(rank, method, (args, kwargs)) for rank in range(self.world_size)]
        return Pending(started, self.gather, list)

    def execute_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Any method, registered or not, on every rank with the same arguments."""
        results: list[Any] = self.execute_all_async(method, *args, **kwargs).get()
        return results

    execute_all_sync = execute_all

    def execute_rank_zero_async(self, method: str, *args: Any, **kwargs: Any) -> Pending:
        """Start any method, registered or not, on rank 0."""
        return Pending([self.start(0, method, (args, kwargs))], self.gather, _only)

    def execute_rank_zero(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Any method, registered or not, on rank 0."""
        return self.execute_rank_zero_async(method, *args, **kwargs).get()

    execute_rank_zero_sync = execute_rank_zero

    async def end_on_all(self, method: str) -> None:
        """Await an async method that ends something; where it fails on a rank, the others end all the same."""
        ranks = range(self.world_size)
        ended = await asyncio.gather(
            *(self.run_async(rank, method, ((), {})) for rank in ranks), return_exceptions=True
        )
        for rank, error in zip(ranks, ended, strict=True):
            if isinstance(error, BaseException):
                logger.warning("rank %d does not end by itself: %s", rank, error)

    def mesh(self, name: str) -> list[MeshRank]:
        """Where each rank stands in a mesh that the workers joined.

        Raises:
            WorkerClassError: a rank did not join it, or not one rank of each share collects.
        """
        if name not in self._meshes:
            places = self.execute_all("mesh_rank", name)
            absent = [rank for rank, place in enumerate(places) if place is None]
            if absent:
                raise WorkerClassError(
                    f"rank {absent[0]} of {self.worker_cls.__qualname__} is not in the mesh {name!r}: call "
                    f"self.join_mesh({name!r}, dp_rank, collects=...) on every worker first"
                )
            shares = max(place.dp_rank for place in places) + 1
            collected = [places[rank].dp_rank for rank in _collecting(places)]
            if collected != list(range(shares)):
                raise WorkerClassError(
                    f"mesh {name!r} of {self.worker_cls.__qualname__}: ranks collect the shares {collected}; expected "
                    f"each from 0 to {shares - 1} once: self.join_mesh(..., collects=True) on one rank of each share"
                )
            self._meshes[name] = places
        return self._meshes[name]

    def _call(self, name: str, registration: Registration, arguments: Arguments) -> Any:
        parts, places = self._parts(registration, arguments), self._places(registration)
        started = [
            self.start(rank, name, parts[place.dp_rank], returns=place.collects) for rank, place in enumerate(places)
        ]
        pending = Pending(started, self.gather, _collect_of(registration), _collecting(places))
        return pending.get() if registration.blocking else pending

    async def _call_async(self, name: str, registration: Registration, arguments: Arguments) -> Any:
        parts, places = self._parts(registration, arguments), self._places(registration)
        tasks = [
            asyncio.create_task(self.run_async(rank, name, parts[place.dp_rank], returns=place.collects))
            for rank, place in enumerate(places)
        ]
        try:
            results = list(await asyncio.gather(*tasks))
        finally:
            # One rank that raises, or a cancelled caller, must not leave the others running unseen.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return _collect_of(registration)([results[rank] for rank in _collecting(places)])

    def _places(self, registration: Registration) -> list[MeshRank]:
        """Which part each rank that runs gets; parts are in order of the ranks that collect them."""
        if registration.execute_mode is Execute.RANK_ZERO:
            return [MeshRank(0, collects=True)]
        if registration.mode.mesh is None:
            return [MeshRank(rank, collects=True) for rank in range(self.world_size)]
        return self.mesh(registration.mode.mesh)

    def _parts(self, registration: Registration, arguments: Arguments) -> list[Arguments]:
        """The arguments of each part."""
        if registration.materialize_futures:
            arguments = _mapped(arguments, lambda value: value.get() if isinstance(value, Pending) else value)
        if registration.execute_mode is Execute.RANK_ZERO:
            parts = [arguments]
        else:
            places = self._places(registration)
            parts = registration.mode.split(max(place.dp_rank for place in places) + 1, arguments)
        if registration.materialize_futures:
            return parts
        return [
            _mapped(part, lambda value: value.deferred() if isinstance(value, Pending) else value) for part in parts
        ]


def _collecting(places: list[MeshRank]) -> list[int]:
    """The ranks that return the results, in the order of their shares."""
    ranks = [rank for rank, place in enumerate(places) if place.collects]
    return sorted(ranks, key=lambda rank: places[rank].dp_rank)


def _collect_of(registration: Registration) -> Callable[[list[Any]], Any]:
    """What makes the results of the call's shares its own."""
    return _only if registration.execute_mode is Execute.RANK_ZERO else registration.mode.collect


def _only(results: list[Any]) -> Any:
    return results[0]


def _mapped(arguments: Arguments, change: Any) -> Arguments:
    args, kwargs = arguments
    return tuple(change(value) for value in args), {name: change(value) for name, value in kwargs.items()}
