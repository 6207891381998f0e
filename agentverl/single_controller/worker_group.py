"""WorkerGroup: the workers of one role, called as if they were one object."""

import asyncio
import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from agentverl.single_controller.dispatch import Arguments, Execute, Registration, registered_methods
from agentverl.single_controller.worker_errors import WorkerClassError


class Pending:
    """The result of a call that was not waited for."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait = wait

    def get(self) -> Any:
        """Wait for the result; raises what the call raised."""
        return self._wait()


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

    def __init__(self, worker_cls: type, world_size: int) -> None:
        if world_size < 1:
            raise WorkerClassError(f"a group needs at least one worker, got {world_size}")
        self.worker_cls = worker_cls
        self.world_size = world_size
        self._methods = registered_methods(worker_cls)

    @abstractmethod
    def start(self, rank: int, method: str, arguments: Arguments) -> Callable[[], Any]:
        """Start a method on one rank and return at once; what is returned waits and gives the result or raises."""

    @abstractmethod
    def run_async(self, rank: int, method: str, arguments: Arguments) -> Coroutine[Any, Any, Any]:
        """A coroutine that runs an async method on one rank."""

    @abstractmethod
    def close(self) -> None:
        """Close all workers."""

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

    def execute_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Any method, registered or not, on every rank with the same arguments."""
        return [wait() for wait in [self.start(rank, method, (args, kwargs)) for rank in range(self.world_size)]]

    def execute_rank_zero(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Any method, registered or not, on rank 0."""
        return self.start(0, method, (args, kwargs))()

    def _call(self, name: str, registration: Registration, arguments: Arguments) -> Any:
        started = [self.start(rank, name, part) for rank, part in enumerate(self._parts(registration, arguments))]
        pending = Pending(lambda: _collected(registration, [wait() for wait in started]))
        return pending.get() if registration.blocking else pending

    async def _call_async(self, name: str, registration: Registration, arguments: Arguments) -> Any:
        parts = self._parts(registration, arguments)
        tasks = [asyncio.create_task(self.run_async(rank, name, part)) for rank, part in enumerate(parts)]
        try:
            results = list(await asyncio.gather(*tasks))
        finally:
            # One rank that raises, or a cancelled caller, must not leave the others running unseen.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return _collected(registration, results)

    def _parts(self, registration: Registration, arguments: Arguments) -> list[Arguments]:
        """The arguments of each rank that runs."""
        if registration.materialize_futures:
            args, kwargs = arguments
            arguments = (
                tuple(_materialized(value) for value in args),
                {name: _materialized(value) for name, value in kwargs.items()},
            )
        if registration.execute_mode is Execute.RANK_ZERO:
            return [arguments]
        return registration.mode.split(self.world_size, arguments)


def _materialized(value: Any) -> Any:
    return value.get() if isinstance(value, Pending) else value


def _collected(registration: Registration, results: list[Any]) -> Any:
    if registration.execute_mode is Execute.RANK_ZERO:
        return results[0]
    return registration.mode.collect(results)
