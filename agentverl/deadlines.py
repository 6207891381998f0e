"""Deadlines that nest: each boundary uses the smaller of its own and what remains of the trajectory's."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock; `None` never comes."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        """The moment `seconds` from now; `None` means no deadline."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds left, at least 0; `None` without a deadline (what `asyncio.timeout` takes)."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def within(self, seconds: float | None) -> "Deadline":
        """The earlier of this deadline and one `seconds` from now."""
        other = Deadline.after(seconds)
        if self.at is None or (other.at is not None and other.at < self.at):
            return other
        return self
