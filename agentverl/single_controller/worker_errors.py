"""What goes wrong between a controller and its workers."""

import traceback

from agentverl.errors import AgentverlError, BadInputError


class WorkerClassError(BadInputError):
    """A worker class, or a call to its group, that cannot work."""


class ResourceError(BadInputError):
    """What workers need is not there: devices, pools, ports, or Ray itself."""


class WorkerError(AgentverlError):
    """A method that raised on a worker, or a worker that died or does not answer.

    Attributes:
        rank: of the worker.
        worker_traceback: the traceback as it looked on the worker, without frames of the controller; of a worker that
            died the end of its log, of one that does not answer where its threads stand.
    """

    def __init__(self, message: str, rank: int, worker_traceback: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.worker_traceback = worker_traceback

    def __reduce__(self) -> tuple[type["WorkerError"], tuple[str, int, str]]:
        return type(self), (str(self), self.rank, self.worker_traceback)


class WorkerDiedError(WorkerError):
    """The process of a worker ended."""


class WorkerStalledError(WorkerError):
    """A worker does not answer, or does not end what all others ended long ago."""


def own_traceback(error: BaseException) -> str:
    """The traceback of an error without the frame that caught it."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, frames))


def raised_on(where: str, rank: int, error: BaseException, worker_traceback: str) -> Exception:
    """What the controller raises for what a worker raised.

    Our own errors keep their kind, which exit codes depend on, and get the rank as a note; others become a WorkerError
    whose cause they are.
    """
    if isinstance(error, AgentverlError):
        error.add_note(f"raised on {where}")
        return error
    failed = WorkerError(f"{where}: {type(error).__name__}: {error}", rank, worker_traceback)
    failed.__cause__ = error
    return failed
