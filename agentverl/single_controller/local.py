"""Workers in the process of the controller, called one after the other, so that a debugger can step through."""

import traceback
from collections.abc import Callable
from typing import Any

from agentverl.errors import AgentverlError
from agentverl.single_controller.dispatch import Arguments
from agentverl.single_controller.worker import Place, Worker, WorkerClass
from agentverl.single_controller.worker_errors import WorkerClassError, WorkerError
from agentverl.single_controller.worker_group import WorkerGroup


class LocalWorkerGroup(WorkerGroup):
    """A group whose workers are plain objects of this process.

    A call that does not block has run when it returns; what it raised is raised by `Pending.get`.
    """

    def __init__(self, worker_class: WorkerClass, num_workers: int = 1) -> None:
        cls = worker_class.cls
        if not (isinstance(cls, type) and issubclass(cls, Worker)):
            raise WorkerClassError(f"a worker class must inherit from Worker, got {cls!r}")
        super().__init__(cls, num_workers)
        places = [Place(rank=rank, world_size=num_workers) for rank in range(num_workers)]
        self.workers = [self._guarded(place.rank, "__init__", worker_class.make, place) for place in places]

    def start(self, rank: int, method: str, arguments: Arguments) -> Callable[[], Any]:
        args, kwargs = arguments
        try:
            result = self._guarded(rank, method, getattr(self.workers[rank], method), *args, **kwargs)
        except Exception as error:  # raised where the result is asked for, as with a worker elsewhere
            raised = error
            return lambda: _raise(raised)
        return lambda: result

    async def run_async(self, rank: int, method: str, arguments: Arguments) -> Any:
        args, kwargs = arguments
        try:
            return await getattr(self.workers[rank], method)(*args, **kwargs)
        except Exception as error:
            self._report(rank, method, error)
            raise

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def _guarded(self, rank: int, method: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self._report(rank, method, error)
            raise

    def _report(self, rank: int, method: str, error: Exception) -> None:
        """Note the rank on our own errors, whose kinds exit codes depend on; raise others as WorkerError."""
        where = f"rank {rank} of {self.world_size}, {self.worker_cls.__qualname__}.{method}"
        if isinstance(error, AgentverlError):
            error.add_note(f"raised on {where}")
            return
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        lines = traceback.format_exception(type(error), error, frames)
        raise WorkerError(f"{where}: {type(error).__name__}: {error}", rank, "".join(lines)) from error


def _raise(error: Exception) -> Any:
    raise error
