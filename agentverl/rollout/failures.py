"""When failures are too many: the share of failed trajectories that a run bears."""

from collections import Counter, deque

from agentverl.errors import TrainingStoppedError
from agentverl.rollout.episode import EpisodeResult

_WINDOW = 512
_FEWEST = 32


class FailureLedger:
    """Counts the last trajectories and stops the run when more than `max_excluded_fraction` of them failed.

    From the 32nd trajectory on that is judged as each ends, and once there were too many, whoever checks hears of it.
    """

    def __init__(self, max_excluded_fraction: float) -> None:
        self._limit = max_excluded_fraction
        self._failed: deque[bool] = deque(maxlen=_WINDOW)
        self._reasons: Counter[str] = Counter()
        self._too_many: str | None = None

    def note(self, result: EpisodeResult) -> None:
        """Count a trajectory that ended."""
        self._failed.append(result.failed)
        if result.failure is not None:
            message = (result.failure.message.strip().splitlines() or [""])[0]
            self._reasons[f"{result.failure.termination.value}: {message[:300]}"] += 1
        # Who waits looks later, when others may have ended well.
        if self._too_many is None and len(self._failed) >= _FEWEST:
            self._too_many = self._complaint()

    @property
    def too_many(self) -> bool:
        """Whether `check` stops the run, whatever ends before it is asked."""
        return self._too_many is not None

    @property
    def excluded_fraction(self) -> float:
        """The share of the last trajectories that failed."""
        return sum(self._failed) / len(self._failed) if self._failed else 0.0

    def check(self, *, few: bool = False) -> None:
        """Stop where too many failed; with `few`, also of those that ended by now where they are fewer.

        Raises:
            TrainingStoppedError: with the share and the most common reason.
        """
        complaint = self._too_many
        if complaint is None and few and self._failed:
            complaint = self._complaint()
        if complaint is not None:
            raise TrainingStoppedError(complaint)

    def _complaint(self) -> str | None:
        """What is wrong with those that ended; of several, one that failed may be chance."""
        failed, total = sum(self._failed), len(self._failed)
        if self.excluded_fraction <= self._limit or failed == 1 < total:
            return None
        return (
            f"{failed} of the last {total} trajectories failed, more than "
            f"rollout.max_excluded_fraction={self._limit:g} allows. {self._most_common()}"
        )

    def _most_common(self) -> str:
        reason, count = (self._reasons.most_common(1) or [("aborted", sum(self._failed))])[0]
        return f"Most common ({count} times): {reason}"


class ValidationLedger(FailureLedger):
    """The same for validation, where a failed sample counts as unsolved: only when all fail does it say nothing."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def _complaint(self) -> str | None:
        if not all(self._failed):
            return None
        return f"all {len(self._failed)} trajectories of validation failed. {self._most_common()}"
