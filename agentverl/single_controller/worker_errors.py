"""What goes wrong between a controller and its workers."""

from agentverl.errors import AgentverlError, BadInputError


class WorkerClassError(BadInputError):
    """A worker class, or a call to its group, that cannot work."""


class WorkerError(AgentverlError):
    """A method that raised on a worker; the original error is the cause, its traceback is kept as text.

    Attributes:
        rank: of the worker.
        worker_traceback: the traceback as it looked on the worker, without frames of the controller.
    """

    def __init__(self, message: str, rank: int, worker_traceback: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.worker_traceback = worker_traceback

    def __reduce__(self) -> tuple[type["WorkerError"], tuple[str, int, str]]:
        return type(self), (str(self), self.rank, self.worker_traceback)
