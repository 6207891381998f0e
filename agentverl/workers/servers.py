"""The rollout servers of a run, wherever they stand: started, given weights, ended."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentverl import blocking
from agentverl.checkpoint_engine.seats import Seat
from agentverl.errors import BadInputError, TrainingStoppedError
from agentverl.rollout.loss_history import MOST_LOSSES, LossHistory
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.router import Router
from agentverl.single_controller.worker_group import WorkerGroup

logger = logging.getLogger(__name__)


class Servers(ABC):
    """All methods are awaited on the loop that the requests come from.

    Args:
        group: the workers that hold a server each.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self.group = group

    async def start(self) -> list[RolloutReplica]:
        """Let all of them serve."""
        await self.group.start_replica()
        return [self.group.resident(rank, "replica") for rank in range(self.group.world_size)]

    @abstractmethod
    async def update_weights(self, version: int, router: Router) -> None:
        """Bring them the policy's weights; in rotation are only those that hold the complete set afterwards."""

    @abstractmethod
    async def rest(self) -> None:
        """Let training have their memory until the next weights, where they share it."""

    async def stop(self) -> None:
        """Stop serving."""
        await self.group.end_on_all("stop_replica")


class HybridServers(Servers):
    """In the processes of the training ranks, each of which updates its own."""

    async def update_weights(self, version: int, router: Router) -> None:
        await self.group.update_weights(version)
        router.require_version(version)

    async def rest(self) -> None:
        await self.group.rest_replica()


class StandaloneServers(Servers):
    """In processes of their own; one that is lost, or that a set of weights does not reach, leaves rotation.

    A lost one is started again beside training, and is in rotation with the first set that it takes.

    Args:
        trainers: the workers with the training engine.
        bucket_bytes: see `Seat`.
    """

    def __init__(self, group: WorkerGroup, trainers: WorkerGroup, bucket_bytes: int) -> None:
        super().__init__(group)
        self._bucket_bytes = bucket_bytes
        self._trainers = trainers
        self._replicas: list[RolloutReplica] = []
        self._losses = [LossHistory() for _ in range(group.world_size)]
        self._restarting: dict[int, asyncio.Future[None]] = {}
        self._seated: list[int] = []
        self._address = ""

    async def start(self) -> list[RolloutReplica]:
        self._replicas = await super().start()
        return self._replicas

    async def update_weights(self, version: int, router: Router) -> None:
        """See the base class.

        Raises:
            BadInputError: the set does not fit the servers.
            TrainingStoppedError: no server is left.
        """
        router.require_version(version)
        for _ in range(len(self._replicas) * MOST_LOSSES):
            ranks = await self._well(router)
            if not ranks and self._restarting:
                await asyncio.wait(self._restarting.values(), return_when=asyncio.FIRST_COMPLETED)
                continue
            if not ranks:
                break
            reached = await self._send(ranks, version)
            for rank in ranks:
                if rank in reached:
                    router.add(self._replicas[rank])
                else:
                    router.set_aside(self._replicas[rank])
            if reached:
                return
        raise TrainingStoppedError(
            f"none of the {len(self._replicas)} rollout servers takes weights any more; the logs rollout-rank*.log of "
            "the run's folder say why. Start the run again to go on from its last checkpoint"
        )

    async def rest(self) -> None:
        """Their memory is their own."""

    async def stop(self) -> None:
        for restart in self._restarting.values():
            restart.cancel()
        await super().stop()

    async def _well(self, router: Router) -> list[int]:
        """The ranks whose servers answer; those of the others are started again."""
        ranks = []
        for rank, one in enumerate(self._replicas):
            if one not in router.known or rank in self._restarting:
                continue
            if await router.check(one):
                ranks.append(rank)
            elif self._losses[rank].note():
                self._restarting[rank] = asyncio.ensure_future(self._restart(rank, router))
            else:
                await self._give_up(rank, router)
        return ranks

    async def _give_up(self, rank: int, router: Router) -> None:
        logger.warning("rollout server %d was lost too often, and is not started again", rank)
        router.remove(self._replicas[rank])
        try:
            await blocking.call(self.group.end_rank, rank)
        except Exception as error:  # the others can serve all the same
            logger.warning("rollout server %d cannot be ended: %s", rank, error)

    async def _restart(self, rank: int, router: Router) -> None:
        try:
            await blocking.call(self.group.restart, rank)
            await self.group.run_async(rank, "start_replica", ((), {}))
        except Exception as error:  # whatever keeps it from starting, the run goes on with the others
            logger.warning("rollout server %d does not come back: %s", rank, error)
            return
        finally:
            del self._restarting[rank]
        router.remove(self._replicas[rank])
        self._replicas[rank] = self.group.resident(rank, "replica")
        router.expect(self._replicas[rank])
        self._seated = []
        logger.warning("rollout server %d was started again, and waits for weights", rank)

    async def _send(self, ranks: Sequence[int], version: int) -> list[int]:
        """Send a set to some servers; returns those that hold all of it."""
        if list(ranks) != self._seated:
            # Whoever is missing would be waited for, so those that are left meet anew.
            self._seated, self._address = list(ranks), await self._trainers.weights_address()
        size = len(ranks) + 1
        seats = [
            Seat(rank=number, size=size, address=self._address, bucket_bytes=self._bucket_bytes)
            for number in range(size)
        ]
        sending = asyncio.ensure_future(self._trainers.send_weights(seats[0], version))
        arrivals = await asyncio.gather(
            *(
                self.group.run_async(rank, "receive_weights", ((seat, version), {}))
                for rank, seat in zip(ranks, seats[1:], strict=True)
            ),
            return_exceptions=True,
        )
        await asyncio.wait({sending})
        broken = sending.exception()
        failures = {
            rank: error for rank, error in zip(ranks, arrivals, strict=True) if isinstance(error, BaseException)
        }
        for error in failures.values():
            if not isinstance(error, Exception) or isinstance(error, BadInputError):
                raise error
        if failures:
            self._seated = []
        elif broken is not None:
            raise broken
        for rank, error in failures.items():
            logger.warning("rollout server %d did not get the weights of version %d: %s", rank, version, error)
        return [rank for rank in ranks if rank not in failures]
