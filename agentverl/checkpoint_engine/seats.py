"""Seats: which end of a transfer of weights a process is, and where the ends meet."""

from dataclasses import dataclass

MEGABYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One end of a transfer from a training engine to `size - 1` rollout servers."""

    rank: int = 0
    """0 sends; 1, 2, ... receive."""
    size: int = 1
    address: str = ""
    """`host:port` on which the sender listens; without effect where both ends are in one process."""
    bucket_bytes: int = 64 * MEGABYTE
    """Of each of the two buffers that tensors travel in; a larger tensor gets a larger one."""
    timeout_seconds: float = 60.0
    """How long an end waits for the others between two buckets."""

    @property
    def sends(self) -> bool:
        return self.rank == 0

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)


ALONE = Seat()
