"""When failures are too many: the share of failed trajectories that a run bears."""

from collections import Counter, deque

from agentverl.errors import TrainingStoppedError
from agentverl.rollout.episode import EpisodeResult

_WINDOW = 512
_FEWEST = 32


class FailureLedger:
    """Counts the last trajectories and stops the run when more than `max_excluded_fraction` of them failed."""

    def __init__(self, max_excluded_fraction: float) -> None:
        self._limit = max_excluded_fraction
        self._failed: deque[bool] = deque(maxlen=_WINDOW)
        self._reasons: Counter[str] = Counter()

    def note(self, result: EpisodeResult) -> None:
        """Count a trajectory that ended."""
        self._failed.append(result.failed)
        if result.failure is not None:
            message = (result.failure.message.strip().splitlines() or [""])[0]
            self._reasons[f"{result.failure.termination.value}: {message[:300]}"] += 1

    @property
    def excluded_fraction(self) -> float:
        """The share of the last trajectories that failed."""
        return sum(self._failed) / len(self._failed) if self._failed else 0.0

    def check(self, fewest: int = _FEWEST) -> None:
        """Stop once at least `fewest` trajectories ended and too many of them failed; one alone may be chance.

        Raises:
            TrainingStoppedError: with the share and the most common reason.
        """
        failed, total = sum(self._failed), len(self._failed)
        if total < fewest or self.excluded_fraction <= self._limit or failed == 1 < total:
            return
        raise TrainingStoppedError(
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

    def check(self, fewest: int = _FEWEST) -> None:
        """Stop once at least `fewest` trajectories ended and all failed.

        Raises:
            TrainingStoppedError: with the most common reason.
        """
        if len(self._failed) >= fewest and all(self._failed):
            raise TrainingStoppedError(
                f"all {len(self._failed)} trajectories of validation failed. {self._most_common()}"
            )
