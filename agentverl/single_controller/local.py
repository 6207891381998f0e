"""Workers in the process of the controller, called one after the other, so that a debugger can step through."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentverl.single_controller.arguments import resolved
from agentverl.single_controller.pending import Started
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker import Place, WorkerClass
from agentverl.single_controller.worker_errors import WorkerDiedError, own_traceback, raised_on
from agentverl.single_controller.worker_group import WorkerGroup


@dataclass(frozen=True, slots=True)
class _Ended:
    result: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class LocalWorkerGroup(WorkerGroup):
    """A group whose workers are plain objects of this process.

    A call that does not block has run when it returns; what it raised is raised by `Pending.get`.
    """

    def __init__(self, worker_class: WorkerClass, num_workers: int = 1) -> None:
        super().__init__(worker_class.cls, num_workers)
        self._worker_class = worker_class
        self._ended: set[int] = set()
        self.workers: list[Any] = [self._make(rank) for rank in range(num_workers)]

    def _make(self, rank: int) -> Any:
        size = self.world_size
        place = Place(rank=rank, world_size=size, local_rank=rank, local_world_size=size)
        return self._run(rank, "__init__", self._worker_class.make, place)

    def start(self, rank: int, method: str, arguments: Arguments, *, returns: bool = True) -> Started:
        args, kwargs = resolved(arguments)
        try:
            return _Ended(self._run(rank, method, getattr(self._worker(rank), method), *args, **kwargs))
        except Exception as error:  # raised where the result is asked for, as with a worker elsewhere
            return _Ended(error=error)

    def gather(self, started: Sequence[Started]) -> list[Any]:
        return [one.get() for one in started]

    async def run_async(self, rank: int, method: str, arguments: Arguments, *, returns: bool = True) -> Any:
        args, kwargs = resolved(arguments)
        worker = self._worker(rank)
        try:
            return await getattr(worker, method)(*args, **kwargs)
        except Exception as error:
            raise self._reported(rank, method, error) from error.__cause__

    def resident(self, rank: int, name: str) -> Any:
        return self._run(rank, name, getattr(self._worker(rank), name))

    def restart(self, rank: int) -> None:
        self.end_rank(rank)
        self.workers[rank] = self._make(rank)
        self._ended.discard(rank)

    def end_rank(self, rank: int) -> None:
        if rank not in self._ended:
            self._ended.add(rank)
            self._run(rank, "close", self.workers[rank].close)

    def close(self) -> None:
        for rank in range(len(self.workers)):
            self.end_rank(rank)

    def _worker(self, rank: int) -> Any:
        if rank in self._ended:
            raise WorkerDiedError(f"{self._where(rank, 'worker')}: it was ended", rank, "")
        return self.workers[rank]

    def _run(self, rank: int, method: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raised = self._reported(rank, method, error)
            raise raised from raised.__cause__

    def _reported(self, rank: int, method: str, error: Exception) -> Exception:
        return raised_on(self._where(rank, method), rank, error, own_traceback(error))
