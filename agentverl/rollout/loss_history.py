"""How often what another process runs was lost, and whether it is worth starting again."""

import time
from dataclasses import dataclass, field

MOST_LOSSES = 3
WITHIN_SECONDS = 600.0
"""What is lost, or does not start, so often in so short a time is lost for good: what kills it would go on to."""


@dataclass(slots=True)
class LossHistory:
    """Those of one runner or server."""

    _at: list[float] = field(default_factory=list)

    def note(self) -> bool:
        """Count one; whether another process may take the place."""
        now = time.monotonic()
        self._at = [*(at for at in self._at if now - at < WITHIN_SECONDS), now]
        return len(self._at) < MOST_LOSSES
