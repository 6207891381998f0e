"""What a call on another process comes to, as it travels back."""

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentverl.single_controller.worker_errors import WorkerError, own_traceback, raised_on


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, with its traceback as text; one that does not pickle travels as text alone."""

    kind: str
    message: str
    traceback: str
    pickled: bytes | None
    at: float = field(default_factory=time.time)
    """Seconds since the epoch: of several failures the first one is the reason of the others."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """What was just caught."""
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = None
        return cls(type(error).__name__, str(error), own_traceback(error), pickled)

    def raised_on(self, where: str, rank: int) -> Exception:
        """What the controller raises."""
        error = None if self.pickled is None else _unpickled(self.pickled)
        if error is not None:
            return raised_on(where, rank, error, self.traceback)
        return WorkerError(f"{where}: {self.kind}: {self.message}", rank, self.traceback)


def outcome_of(function: Callable[[], Any]) -> Outcome | Failure:
    """What calling it comes to."""
    try:
        return Outcome(function())
    except BaseException as error:  # SystemExit of a worker is its failure, not the end of its process
        return Failure.of(error)


def _unpickled(pickled: bytes) -> BaseException | None:
    try:
        error: BaseException = pickle.loads(pickled)
    except Exception:  # its class is known to the worker only
        return None
    return error
