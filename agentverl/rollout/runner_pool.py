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
from agentverl.rollout.player import Ended, Grant, Letter, Order, Player, Wish
from agentverl.rollout.router import HEALTH_SECONDS, Lease
from agentverl.single_controller.outcome import Failure

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Play:
    """An episode that a runner plays."""

    lease: Lease
    result: asyncio.Future[EpisodeResult | None]
    """None where the runner is lost."""


@dataclass(slots=True, eq=False)
class _Seat:
    rank: int
    player: Player
    plays: dict[int, _Play] = field(default_factory=dict)
    letter: Letter = field(default_factory=Letter)
    """What the player is told next."""
    is_written: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: bool = False

    @property
    def name(self) -> str:
        return f"runner {self.rank}"


class RunnerPool:
    """A runner of episodes that hands them on to `players`; `open` it on the event loop, `close` it there.

    Leases stay here, so that what a lost runner held is given back; its episodes are played again, with the same seeds.
    """

    def __init__(self, players: Sequence[Player]) -> None:
        self._seats = [_Seat(rank, player) for rank, player in enumerate(players)]
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._gate: Gate | None = None

    @property
    def playing(self) -> list[int]:
        """How many episodes each runner plays, of those that live."""
        return [len(seat.plays) for seat in self._living]

    @property
    def _living(self) -> list[_Seat]:
        return [seat for seat in self._seats if not seat.is_lost]

    async def open(self) -> None:
        """Listen to the runners."""
        for seat in self._seats:
            self._keep(self._guarded(seat, self._listen(seat)))
            self._keep(self._guarded(seat, self._tell(seat)))
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
            play = seat.plays[number] = _Play(lease, asyncio.get_running_loop().create_future())
            seat.letter.orders.append(Order(number, episode, lease.replica))
            seat.is_written.set()
            try:
                result = await play.result
            except asyncio.CancelledError:
                seat.letter.cancelled.append(number)
                seat.is_written.set()
                raise
            finally:
                del seat.plays[number]
            if result is not None:
                result.episode = episode
                return result
            await lease.begin_again()

    def _least_busy(self) -> _Seat:
        living = self._living
        if not living:
            raise TrainingStoppedError(
                f"all {len(self._seats)} runners of episodes are lost; the logs runner-rank*.log of the run's folder "
                "say why. Start the run again to go on from its last checkpoint"
            )
        return min(living, key=lambda seat: len(seat.plays))

    def _lose(self, seat: _Seat, reason: str) -> None:
        if seat.is_lost:
            return
        seat.is_lost = True
        logger.warning(
            "%s is lost; the %d episodes that it played are played again by the %d others: %s",
            seat.name,
            len(seat.plays),
            len(self._living),
            reason,
        )
        for play in seat.plays.values():
            if not play.result.done():
                play.result.set_result(None)

    async def _guarded(self, seat: _Seat, work: Any) -> None:
        """What goes on as long as a runner lives; an error that is no loss of it ends the episodes that it plays."""
        try:
            await work
        except InfrastructureError as error:
            self._lose(seat, str(error))
        except Exception as error:  # nobody awaits this: who waits for its episodes has to hear of it
            for play in seat.plays.values():
                if not play.result.done():
                    play.result.set_exception(error)
            self._lose(seat, str(error))

    async def _tell(self, seat: _Seat) -> None:
        """Send the seat's letters; while one is under way, the next is written."""
        while True:
            await seat.is_written.wait()
            seat.is_written.clear()
            letter, seat.letter = seat.letter, Letter()
            for part in letter.parts():
                await seat.player.take(part)

    async def _listen(self, seat: _Seat) -> None:
        while True:
            reply = await seat.player.next_reply()
            for wish in reply.wishes:
                self._keep(self._answer(seat, wish))
            for ended in reply.ended:
                self._end(seat, ended)

    def _end(self, seat: _Seat, ended: Ended) -> None:
        play = seat.plays.get(ended.number)
        if play is None or play.result.done():
            return  # it was cancelled meanwhile
        if isinstance(ended.outcome, Failure):
            play.result.set_exception(ended.outcome.raised_on(seat.name, seat.rank))
        else:
            play.result.set_result(ended.outcome.value)

    async def _answer(self, seat: _Seat, wish: Wish) -> None:
        play = seat.plays.get(wish.play)
        if play is None:
            return  # its episode was cancelled meanwhile
        lease = play.lease
        try:
            if wish.kind == "open_more":
                await lease.open_more(wish.request_id)
            else:
                await (lease.renew() if wish.kind == "renew" else lease.follow())
            grant = Grant(wish.number, lease.replica)
        except BoundaryError as error:
            grant = Grant(wish.number, None, str(error))
        seat.letter.grants.append(grant)
        seat.is_written.set()

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
            seat.letter.gate_is_open = is_open
            seat.is_written.set()

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
