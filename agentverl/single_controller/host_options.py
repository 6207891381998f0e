"""How the processes of a worker group are started, and how long they are waited for."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Of one group."""

    name: str = "workers"
    """Names the group: in the dashboard, in logs and in errors."""
    logs: Path | None = None
    """A folder that takes the log of each process."""
    detached: bool = False
    """The processes outlive the program that started them."""
    ports: tuple[int, int] | None = None
    """The range of the port at which ranks find each other; None: any free one."""
    start_seconds: float = 300.0
    """How long others may hold the places, and a process may take to come up."""
    silent_seconds: float = 60.0
    """A process that answers nothing for so long has stalled."""
    lag_seconds: float = 1800.0
    """A rank that works so much longer than the first one that ended has stalled."""
