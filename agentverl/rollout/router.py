"""Which rollout server a trajectory talks to: chosen once, and kept until the trajectory ends."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentverl.errors import InfrastructureError
from agentverl.rollout.replica import RolloutReplica


class Lease:
    """A trajectory's hold on one server; between `open` and `close` the server may keep its KV cache."""

    def __init__(self, router: "Router", replica: RolloutReplica, request_id: str) -> None:
        self._router = router
        self._opened = {request_id}
        self.replica = replica
        self.request_id = request_id

    async def open_more(self, request_id: str) -> None:
        """Also hold a request id of a sub-agent."""
        if request_id not in self._opened:
            self._opened.add(request_id)
            await self.replica.open(request_id)

    async def renew(self) -> None:
        """Go on with another server, where there is one: this one failed.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        other = self._router.take(self.request_id, avoid=self.replica)
        if other is self.replica:
            self._router.release(other)
            return
        await self.close()
        self.replica, self._opened = other, {self.request_id}
        await other.open(self.request_id)

    async def close(self) -> None:
        """Give the server back; may be called twice."""
        opened, self._opened = self._opened, set()
        if opened:
            self._router.release(self.replica)
        for request_id in opened:
            await self.replica.close(request_id)


class Router(ABC):
    """Subclass to choose servers otherwise; `choose` sees the servers in rotation and what each one holds."""

    def __init__(self, replicas: Sequence[RolloutReplica]) -> None:
        self._held: dict[RolloutReplica, int] = dict.fromkeys(replicas, 0)

    @abstractmethod
    def choose(self, request_id: str, held: dict[RolloutReplica, int]) -> RolloutReplica:
        """The server for a new trajectory; `held` counts the trajectories of each, in the order they were added."""

    @property
    def replicas(self) -> list[RolloutReplica]:
        return list(self._held)

    @property
    def weight_version(self) -> int:
        """The oldest weights that any server samples with."""
        return min((replica.weight_version for replica in self._held), default=-1)

    @property
    def held(self) -> dict[RolloutReplica, int]:
        """Trajectories that each server holds."""
        return dict(self._held)

    def add(self, replica: RolloutReplica) -> None:
        """Put a server into rotation."""
        self._held.setdefault(replica, 0)

    def remove(self, replica: RolloutReplica) -> None:
        """Take a server out of rotation; the trajectories that it holds stay with it."""
        self._held.pop(replica, None)

    def take(self, request_id: str, *, avoid: RolloutReplica | None = None) -> RolloutReplica:
        """Choose a server and count the trajectory; `avoid` one where another is in rotation.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        candidates = {one: count for one, count in self._held.items() if one is not avoid} or self._held
        if not candidates:
            raise InfrastructureError("no rollout server is in rotation", "model")
        chosen = self.choose(request_id, candidates)
        self._held[chosen] += 1
        return chosen

    def release(self, replica: RolloutReplica) -> None:
        """Stop counting a trajectory."""
        if replica in self._held:
            self._held[replica] -= 1

    async def lease(self, request_id: str) -> Lease:
        """A server for one trajectory, until the lease is closed."""
        lease = Lease(self, self.take(request_id), request_id)
        await lease.replica.open(request_id)
        return lease


class LeastLoadedRouter(Router):
    """The server that holds the fewest trajectories, the first of them where several do."""

    def choose(self, request_id: str, held: dict[RolloutReplica, int]) -> RolloutReplica:
        """The least loaded server."""
        return min(held, key=lambda replica: held[replica])
