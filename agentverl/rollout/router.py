"""Which rollout server a trajectory talks to: chosen once, and kept until the trajectory ends or the server does."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BoundaryError, InfrastructureError
from agentverl.rollout.replica import RolloutReplica

logger = logging.getLogger(__name__)

HEALTH_SECONDS = 60.0
"""A server that does not say within this time how it is, is taken for lost."""


class Lease:
    """A trajectory's hold on one server; between `open` and `close` the server may keep its KV cache."""

    def __init__(self, router: "Router", replica: RolloutReplica, request_id: str) -> None:
        self._router = router
        self._opened = {request_id}
        # Sub-agents may find at the same time that a server failed.
        self._moving = asyncio.Lock()
        self.replica = replica
        self.request_id = request_id

    async def open_more(self, request_id: str) -> None:
        """Also hold a request id of a sub-agent."""
        if request_id not in self._opened:
            self._opened.add(request_id)
            await self.replica.open(request_id)

    async def renew(self, failed: RolloutReplica | None = None) -> None:
        """Go on with another server where this one failed and there is another; it leaves rotation if it is dead.

        Args:
            failed: the server that failed its caller; nothing is done where the lease moved on from it already.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        async with self._moving:
            if failed in (None, self.replica):
                await self._router.check(self.replica)
                await self._move(self._router.take(self.request_id, avoid=self.replica))

    async def follow(self) -> None:
        """Stay, or go on with another server where this one left rotation.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        async with self._moving:
            if self.replica not in self._router.held:
                await self._move(self._router.take(self.request_id))

    async def _move(self, other: RolloutReplica) -> None:
        if other is self.replica:
            self._router.release(other)
            return
        await self.close()
        self.replica, self._opened = other, {self.request_id}
        await other.open(self.request_id)

    async def begin_again(self) -> None:
        """Forget what the trajectory asked so far: whoever asked is gone, and it will be played anew.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        opened = sorted(self._opened)
        try:
            for request_id in opened:
                await self.replica.abort(request_id)
                await self.replica.close(request_id)
            self._opened = {self.request_id}
            await self.replica.open(self.request_id)
        except BoundaryError:
            await self.renew()

    async def close(self) -> None:
        """Give the server back, also one that is gone; may be called twice."""
        opened, self._opened = self._opened, set()
        if opened:
            self._router.release(self.replica)
        try:
            for request_id in opened:
                await self.replica.close(request_id)
        except BoundaryError as error:
            logger.info("the server of %s is gone: %s", self.request_id, error)


class Router(ABC):
    """Subclass to choose servers otherwise; `choose` sees the servers in rotation and what each one holds."""

    def __init__(self, replicas: Sequence[RolloutReplica]) -> None:
        self._rotation: dict[RolloutReplica, None] = dict.fromkeys(replicas)
        self._ailing: dict[RolloutReplica, None] = {}
        self._holding: Counter[RolloutReplica] = Counter()
        self._required_version = -1
        self._last_loss = ""

    @abstractmethod
    def choose(self, request_id: str, held: dict[RolloutReplica, int]) -> RolloutReplica:
        """The server for a new trajectory; `held` counts the trajectories of each, in the order they were added."""

    @property
    def replicas(self) -> list[RolloutReplica]:
        """The servers in rotation."""
        return list(self._rotation)

    @property
    def known(self) -> list[RolloutReplica]:
        """The servers in rotation, and those that come back when they are well again."""
        return [*self._rotation, *self._ailing]

    @property
    def weight_version(self) -> int:
        """The oldest weights that any server samples with."""
        if self._required_version >= 0:
            return self._required_version
        return min((replica.weight_version for replica in self._rotation), default=-1)

    @property
    def held(self) -> dict[RolloutReplica, int]:
        """Trajectories that each server in rotation holds."""
        return {replica: self._holding[replica] for replica in self._rotation}

    @property
    def total_held(self) -> int:
        """Trajectories that hold a server, also those whose server left rotation."""
        return self._holding.total()

    def add(self, replica: RolloutReplica) -> None:
        """Put a server into rotation."""
        self._ailing.pop(replica, None)
        self._rotation.setdefault(replica)

    def remove(self, replica: RolloutReplica) -> None:
        """Take a server out of rotation; the trajectories that it holds stay with it."""
        self._rotation.pop(replica, None)
        self._ailing.pop(replica, None)

    def set_aside(self, replica: RolloutReplica) -> None:
        """Take a server out of rotation until `check` finds it well, or it is added."""
        if replica in self._rotation:
            del self._rotation[replica]
            self._ailing[replica] = None

    def expect(self, replica: RolloutReplica) -> None:
        """Know a server that is not in rotation until `check` finds that it has the weights, or it is added."""
        self._ailing[replica] = None

    def require_version(self, version: int) -> None:
        """All servers in rotation have these weights; let none come back with older ones."""
        self._required_version = version

    async def leave(self, replica: RolloutReplica) -> None:
        """Take a server out of rotation; its trajectories go on elsewhere, from the tokens that they have."""
        self.remove(replica)
        await replica.abort_all_requests()

    async def check(self, replica: RolloutReplica) -> bool:
        """Ask a server how it is; one that does not say leaves rotation until it does."""
        try:
            said = await bounded(replica.health(), HEALTH_SECONDS)
        except (BoundaryError, OutOfTimeError) as error:
            if replica in self._rotation:
                self.set_aside(replica)
                self._last_loss = (
                    f"; the last one left it: {error}. Training that is started again goes on from its last checkpoint"
                )
                logger.warning("a rollout server left rotation, %d are left: %s", len(self._rotation), error)
            return False
        if replica in self._ailing and said.get("weight_version", -1) >= self._required_version:
            self.add(replica)
            logger.warning("a rollout server is back in rotation, which has %d", len(self._rotation))
        return True

    def take(self, request_id: str, *, avoid: RolloutReplica | None = None) -> RolloutReplica:
        """Choose a server and count the trajectory; `avoid` one where another is in rotation.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        held = self.held
        candidates = {one: count for one, count in held.items() if one is not avoid} or held
        if not candidates:
            raise InfrastructureError(f"no rollout server is in rotation{self._last_loss}", "model")
        chosen = self.choose(request_id, candidates)
        self._holding[chosen] += 1
        return chosen

    def release(self, replica: RolloutReplica) -> None:
        """Stop counting a trajectory."""
        self._holding[replica] -= 1
        if not self._holding[replica]:
            del self._holding[replica]

    async def lease(self, request_id: str) -> Lease:
        """A server for one trajectory, until the lease is closed.

        Raises:
            InfrastructureError: no server is in rotation.
        """
        lease = Lease(self, self.take(request_id), request_id)
        try:
            try:
                await lease.replica.open(request_id)
            except BoundaryError:
                await lease.renew()
        except BaseException:
            self.release(lease.replica)
            raise
        return lease


class LeastLoadedRouter(Router):
    """The server that holds the fewest trajectories, the first of them where several do."""

    def choose(self, request_id: str, held: dict[RolloutReplica, int]) -> RolloutReplica:
        """The least loaded server."""
        return min(held, key=lambda replica: held[replica])
