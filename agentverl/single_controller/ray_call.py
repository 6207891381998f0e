"""A method that runs on one rank in another process, and what it comes to."""

from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from time import time
from typing import Any

import ray

from agentverl.single_controller.outcome import Failure, Outcome
from agentverl.single_controller.worker_errors import WorkerDiedError, WorkerError

_LINES_OF_LOG = 40
_LONGEST_REASON = 200
_REASONS = {
    "unexpectedly exits with a connection error": "it was killed, as where memory runs out, or it crashed",
    "its node has died": "its machine is gone",
    "killed by `ray.kill`": "it was ended",
}
"""Of what Ray says with many words, and often."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A call that failed."""

    error: Exception
    """What the controller raises."""
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class RayCall:
    """A method that was started on one rank."""

    reference: Any
    where: str
    rank: int
    log: Path | None

    def get(self) -> Any:
        """Wait for the result; raises what the worker raised, or WorkerDiedError."""
        settled = self.settle()
        if isinstance(settled, Broken):
            raise settled.error from settled.error.__cause__
        return settled.value

    def settle(self) -> Outcome | Broken:
        """Wait for the end, whichever it is."""
        try:
            return self.read(self.reference.future().result())
        except ray.exceptions.RayError as error:
            return self.lost(error)

    def read(self, outcome: Outcome | Failure) -> Outcome | Broken:
        """What came back."""
        if isinstance(outcome, Failure):
            return Broken(outcome.raised_on(self.where, self.rank), outcome.at)
        return outcome

    def lost(self, error: Exception) -> Broken:
        """What Ray says where nothing came back, with the end of the worker's own log."""
        return Broken(died(error, self.where, self.rank, self.log), time())


def died(error: Exception, where: str, rank: int, log: Path | None) -> WorkerError:
    """What Ray says of a call that did not come back, with the end of the worker's own log."""
    text = " ".join(str(error).split())
    if isinstance(error, ray.exceptions.RayTaskError):
        failed = WorkerError(f"{where}: its arguments cannot be read there: {text}", rank, text)
    else:
        tail = _end_of(log)
        said = f"; its log {log} ends: {tail.splitlines()[-1]}" if tail else ""
        failed = WorkerDiedError(f"{where}: its process died: {_reason(error)}{said}", rank, tail)
    failed.__cause__ = error
    return failed


def _reason(error: Exception) -> str:
    """Why a process died, in a few words."""
    text = str(error)
    for words, reason in _REASONS.items():
        if words in text:
            return reason
    own = " ".join(line for line in text.splitlines() if not line.startswith("\t"))  # tabs begin Ray's ids of the actor
    return shorten(own.removeprefix("The actor died unexpectedly before finishing this task. "), _LONGEST_REASON)


def _end_of(log: Path | None) -> str:
    if log is None or not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_OF_LOG:])
