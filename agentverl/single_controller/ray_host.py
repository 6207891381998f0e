"""WorkerHost: the Ray actor that holds the workers of one rank, one worker a role."""

import asyncio
import faulthandler
import inspect
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentverl.single_controller.arguments import needs_resolving, resolved
from agentverl.single_controller.call_order import CallOrder, Turn
from agentverl.single_controller.outcome import Failure, Outcome, outcome_of
from agentverl.single_controller.ports import address_here
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker import Place, Worker, WorkerClass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """How the process of one rank begins."""

    title: str
    """What the dashboard and the log call it: role and rank."""
    folder: Path
    """The controller's working folder; relative paths mean the same here where it exists."""
    log: Path | None = None
    """Takes all that the process prints, beside Ray's own log."""
    environment: dict[str, str] = field(default_factory=dict)


class WorkerHost:
    """Runs the sync methods of its workers in one thread, as they were sent, the async ones on the event loop.

    So it answers while a worker computes, and a process that does not answer has stalled.
    """

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._workers: dict[str, Worker] = {}
        os.environ.update(settings.environment)
        if settings.folder.is_dir():
            os.chdir(settings.folder)
        if settings.log is not None:
            _print_into(settings.log)
        faulthandler.enable()
        # A device is chosen for a thread, and collective operations must come in one order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._order = CallOrder()

    def __repr__(self) -> str:
        return self._settings.title

    async def address(self, ports: tuple[int, int] | None) -> tuple[str, int | None]:
        """See `address_here`."""
        return address_here(ports)

    async def set_up(self, pickled: bytes, place: Place, environment: dict[str, str]) -> Outcome | Failure:
        """Make the worker of each role."""
        os.environ.update(environment)

        def make() -> None:
            roles: dict[str, WorkerClass] = pickle.loads(pickled)
            self._workers = {role: worker_class.make(place) for role, worker_class in roles.items()}

        return await self._computed(make)

    async def call(
        self, role: str, method: str, arguments: Arguments, returns: bool, turn: Turn | None = None
    ) -> Outcome | Failure:
        """Run a method of a worker, after those that were sent before it, and give its result if `returns`.

        Args:
            turn: None for an async method that may begin at any time.
        """
        if turn is None:
            begun = self._begun(role, method, arguments)
        else:
            async with self._order.beginning(turn):
                begun = self._begun(role, method, arguments)
        outcome = await begun
        return outcome if returns or isinstance(outcome, Failure) else Outcome()

    def _begun(self, role: str, method: str, arguments: Arguments) -> asyncio.Future[Outcome | Failure]:
        worker = self._workers.get(role)
        found = getattr(worker, method, None)
        if inspect.iscoroutinefunction(found):
            return asyncio.ensure_future(self._awaited(found, arguments))
        return self._computed(lambda: _called(worker, method, arguments))

    async def call_resident(self, role: str, name: str, method: str, arguments: Arguments) -> Outcome | Failure:
        """Await a method of what `worker.<name>()` returns."""
        try:
            found = getattr(self._resident(role, name), method)
        except Exception as error:
            return Failure.of(error)
        return await self._awaited(found, arguments)

    async def read_resident(self, role: str, name: str, attribute: str) -> Outcome | Failure:
        """An attribute of what `worker.<name>()` returns."""
        return outcome_of(lambda: getattr(self._resident(role, name), attribute))

    def _resident(self, role: str, name: str) -> Any:
        return getattr(self._workers[role], name)()

    async def ping(self) -> int:
        """The process id."""
        return os.getpid()

    async def stacks(self) -> str:
        """Where each thread that computes stands."""
        frames, names = sys._current_frames(), {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"thread {name}:\n{''.join(traceback.format_stack(frames[ident]))}"
            for ident, name in names.items()
            if ident in frames and name.startswith("worker")
        )

    async def close(self) -> Outcome | Failure:
        """Close the workers."""

        def end() -> None:
            for worker in self._workers.values():
                worker.close()

        return await self._computed(end)

    def _computed(self, function: Callable[[], Any]) -> asyncio.Future[Outcome | Failure]:
        return asyncio.get_running_loop().run_in_executor(self._thread, outcome_of, function)

    async def _awaited(self, function: Callable[..., Any], arguments: Arguments) -> Outcome | Failure:
        try:
            args, kwargs = await asyncio.to_thread(resolved, arguments) if needs_resolving(arguments) else arguments
            return Outcome(await function(*args, **kwargs))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # as in a sync method, not the end of the process
            return Failure.of(error)


def _called(worker: Worker | None, method: str, arguments: Arguments) -> Any:
    if worker is None:
        raise RuntimeError("its worker is not made yet, as its process has just been started; call it again later")
    found = getattr(worker, method, None)
    if found is None:
        raise AttributeError(f"the worker has no method {method!r}")
    args, kwargs = resolved(arguments)
    return found(*args, **kwargs)


def _print_into(path: Path) -> None:
    """Let stdout and stderr of the process go into a file, also what libraries in C write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8", buffering=1) as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
