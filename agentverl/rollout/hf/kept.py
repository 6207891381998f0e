"""KV caches of open trajectories between their requests, the least recently used dropped first."""

from collections import OrderedDict, defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentverl.rollout.hf.kv_pool import Snapshot

Ids = npt.NDArray[np.int64]

PER_TRAJECTORY = 4
"""Conversations of one trajectory that are kept: itself and a few sub-agents, or earlier forks of it."""


@dataclass(slots=True, eq=False)
class Kept:
    """What one finished request left: the ids whose keys and values the snapshot holds."""

    request_id: str
    ids: Ids
    snapshot: Snapshot


class KeptCaches:
    """Snapshots by trajectory. A trajectory may have several: sub-agents and restarted conversations."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._of: defaultdict[str, list[Kept]] = defaultdict(list)
        self._by_age: OrderedDict[Kept, None] = OrderedDict()
        self.memory_bytes = 0

    @property
    def open_leases(self) -> AbstractSet[str]:
        return self._open

    def __len__(self) -> int:
        return len(self._by_age)

    def open(self, request_id: str) -> None:
        self._open.add(request_id)

    def close(self, request_id: str) -> None:
        self._open.discard(request_id)
        for kept in list(self._of.get(request_id, ())):
            self._drop(kept)

    def is_open(self, request_id: str) -> bool:
        return request_id in self._open

    def holds(self, request_id: str) -> bool:
        """Whether anything is kept for a trajectory."""
        return request_id in self._of

    def add(self, request_id: str, ids: Ids, snapshot: Snapshot) -> None:
        """Keep a snapshot for an open trajectory."""
        kept = Kept(request_id, ids, snapshot)
        of_trajectory = self._of[request_id]
        of_trajectory.append(kept)
        self._by_age[kept] = None
        self.memory_bytes += snapshot.memory_bytes
        if len(of_trajectory) > PER_TRAJECTORY:
            self._drop(of_trajectory[0])

    def longest_prefix(self, request_id: str, ids: Ids) -> tuple[Snapshot, int] | None:
        """The snapshot that shares most with `ids`, and how many tokens; one token of `ids` is always left over.

        A snapshot that is used whole is handed over, one that shares only its beginning stays for others.
        """
        best, shared = None, 0
        for kept in self._of.get(request_id, ()):
            common = _common_prefix(kept.ids, ids[:-1])
            if common > shared:
                best, shared = kept, common
        if best is None:
            return None
        if shared == len(best.ids):
            self._drop(best)
        else:
            self._by_age.move_to_end(best)
        return best.snapshot, shared

    def shrink_to(self, memory_bytes: int) -> None:
        """Drop the least recently used until at most `memory_bytes` are kept."""
        while self._by_age and self.memory_bytes > memory_bytes:
            self._drop(next(iter(self._by_age)))

    def clear(self) -> None:
        """Drop all snapshots; leases stay open."""
        self._of.clear()
        self._by_age.clear()
        self.memory_bytes = 0

    def _drop(self, kept: Kept) -> None:
        del self._by_age[kept]
        self.memory_bytes -= kept.snapshot.memory_bytes
        of_trajectory = self._of[kept.request_id]
        of_trajectory.remove(kept)
        if not of_trajectory:
            del self._of[kept.request_id]


def _common_prefix(left: Ids, right: Ids) -> int:
    count = min(len(left), len(right))
    differing = np.flatnonzero(left[:count] != right[:count])
    return int(differing[0]) if len(differing) else count
