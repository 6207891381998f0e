"""Episodes played in other processes: each where the fewest are played, and anew where its runner is lost."""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BoundaryError, InfrastructureError, TrainingStoppedError
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.router import HEALTH_SECONDS, Lease
from agentverl.rollout.runner_worker import Grant, Player, Wish

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Seat:
    name: str
    player: Player
    leases: dict[int, Lease] = field(default_factory=dict)
    """Of the episodes that it plays."""
    plays: set[asyncio.Future[Any]] = field(default_factory=set)
    is_lost: bool = False


class RunnerPool:
    """A runner of episodes that hands them on to `players`; `open` it on the event loop, `close` it there.

    Leases stay here, so that what a lost runner held is given back; its episodes are played again, with the same seeds.
    """

    def __init__(self, players: Sequence[Player]) -> None:
        self._seats = [_Seat(f"runner {number}", player) for number, player in enumerate(players)]
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._gate: Gate | None = None

    @property
    def playing(self) -> list[int]:
        """How many episodes each runner plays, of those that live."""
        return [len(seat.leases) for seat in self._living]

    @property
    def _living(self) -> list[_Seat]:
        return [seat for seat in self._seats if not seat.is_lost]

    async def open(self) -> None:
        """Listen to the runners."""
        for seat in self._seats:
            self._keep(self._listen(seat))
        self._keep(self._look_after())

    async def close(self) -> None:
        """Stop listening; may be called twice."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
        """Play an episode on the leased server, in the process that plays the fewest.

        Raises:
            BadInputError: see `EpisodeRunner.run`.
            TrainingStoppedError: every runner is lost.
        """
        if self._gate is None:
            self._gate = gate
            gate.listeners.append(self._tell_gate)
            self._tell_gate(gate.is_open)
        while True:
            seat, number = self._least_busy(), next(self._numbers)
            play = asyncio.ensure_future(seat.player.play(number, episode, lease.replica))
            seat.leases[number] = lease
            seat.plays.add(play)
            try:
                result: EpisodeResult = await play
                result.episode = episode
                return result
            except InfrastructureError as error:
                self._lose(seat, str(error))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not seat.is_lost or (task is not None and task.cancelling()):
                    raise
            finally:
                seat.plays.discard(play)
                del seat.leases[number]
            await lease.begin_again()

    def _least_busy(self) -> _Seat:
        living = self._living
        if not living:
            raise TrainingStoppedError(
                f"all {len(self._seats)} runners of episodes are lost; the logs runner-rank*.log of the run's folder "
                "say why. Start the run again to go on from its last checkpoint"
            )
        return min(living, key=lambda seat: len(seat.leases))

    def _lose(self, seat: _Seat, reason: str) -> None:
        if seat.is_lost:
            return
        seat.is_lost = True
        logger.warning(
            "%s is lost; the %d episodes that it played are played again by the %d others: %s",
            seat.name,
            len(seat.leases),
            len(self._living),
            reason,
        )
        for play in list(seat.plays):
            play.cancel()

    async def _listen(self, seat: _Seat) -> None:
        while True:
            try:
                wishes = await seat.player.next_wishes()
            except InfrastructureError as error:
                return self._lose(seat, str(error))
            for wish in wishes:
                self._keep(self._answer(seat, wish))

    async def _answer(self, seat: _Seat, wish: Wish) -> None:
        lease = seat.leases.get(wish.play)
        if lease is None:
            return  # its episode was cancelled meanwhile
        try:
            if wish.kind == "open_more":
                await lease.open_more(wish.request_id)
            else:
                await (lease.renew() if wish.kind == "renew" else lease.follow())
            grant = Grant(lease.replica)
        except BoundaryError as error:
            grant = Grant(None, str(error))
        try:
            await seat.player.grant(wish.number, grant)
        except InfrastructureError as error:
            self._lose(seat, str(error))

    async def _look_after(self) -> None:
        """Find runners that died or stand still while no episode tells."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.gather(*(self._look_at(seat) for seat in self._living))

    async def _look_at(self, seat: _Seat) -> None:
        try:
            await bounded(seat.player.health(), HEALTH_SECONDS)
        except (InfrastructureError, OutOfTimeError) as error:
            self._lose(seat, str(error))

    def _tell_gate(self, is_open: bool) -> None:
        for seat in self._living:
            self._keep(self._set_gate(seat, is_open))

    async def _set_gate(self, seat: _Seat, is_open: bool) -> None:
        try:
            await seat.player.set_gate(is_open)
        except InfrastructureError as error:
            self._lose(seat, str(error))

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
