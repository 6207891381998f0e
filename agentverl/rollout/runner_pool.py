"""Episodes played in other processes: each where the fewest are played, and anew where its runner is lost."""

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import fields
from typing import Any, Protocol

from agentverl import blocking
from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BoundaryError, InfrastructureError, TrainingStoppedError
from agentverl.protocol.column_store import Block, held
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.health import look_after
from agentverl.rollout.judging import fail_unjudged
from agentverl.rollout.player import Grant, Letter, Order, Player, Wish
from agentverl.rollout.router import HEALTH_SECONDS, Lease
from agentverl.rollout.runner_seat import Play, RunnerSeat
from agentverl.rollout.scoring import failure_of

logger = logging.getLogger(__name__)


class Processes(Protocol):
    """What runners run in."""

    async def replace(self, rank: int) -> Player:
        """The player of a rank in a new process; the old one ends, whatever it does."""
        ...

    async def end(self, rank: int) -> None:
        """End the process of a rank, whatever it does."""
        ...


class RunnerPool:
    """A runner of episodes that hands them on to `players`; `open` it on the event loop, `close` it there.

    Leases stay here, so that what a lost runner held is given back; its episodes are played again, with the same seeds.

    Args:
        processes: where a runner is started in the place of a lost one; without them, the others take over.
    """

    def __init__(self, players: Sequence[Player], processes: Processes | None = None) -> None:
        self._seats = [RunnerSeat(rank, player) for rank, player in enumerate(players)]
        self._processes = processes
        self._has_changed = asyncio.Event()
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._gate: Gate | None = None

    @property
    def playing(self) -> list[int]:
        """How many episodes each runner plays, of those that live."""
        return [len(seat.plays) for seat in self._living]

    @property
    def _living(self) -> list[RunnerSeat]:
        return [seat for seat in self._seats if not seat.is_lost]

    async def open(self) -> None:
        """Listen to the runners."""
        for seat in self._seats:
            self._attend(seat)
        self._keep(look_after(lambda: map(self._look_at, self._living)))

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
            seat, number = await self._least_busy(), next(self._numbers)
            play = seat.plays[number] = Play(lease, asyncio.get_running_loop().create_future())
            seat.write().orders.append(Order(number, episode, lease.replica))
            try:
                result = await play.result
            except asyncio.CancelledError:
                seat.write().cancelled.append(number)
                raise
            finally:
                del seat.plays[number]
            if result is not None:
                result.episode = episode
                return result
            try:
                await lease.begin_again()
            except BoundaryError as error:  # there is no server to play it on, which is for the ledger to judge
                failure = failure_of(error, error.boundary)
                return EpisodeResult(episode=episode, failure=failure, termination=failure.termination)

    @property
    def takes_groups(self) -> bool:
        """What the runners leave to be judged is judged by one of them, a prompt at a time."""
        return True

    async def judge(self, results: Sequence[EpisodeResult]) -> None:
        """Let a runner judge trajectories of a prompt; those that were lost before are failed.

        Raises:
            TrainingStoppedError: every runner is lost.
        """
        wholes = [_whole(result) for result in results]
        judged: list[EpisodeResult] | None = None
        while judged is None and (there := await blocking.call(held, wholes)):
            seat = await self._least_busy()
            seat.judges += 1
            try:
                judged = (await seat.player.judge([whole for whole in wholes if whole in there])).opened()
            except InfrastructureError as error:
                self._lose(seat, str(error))
            except TrainingStoppedError:
                if there <= await blocking.call(held, wholes):  # so it was not for one that was lost meanwhile
                    raise
            finally:
                seat.judges -= 1
        verdicts = {verdict.episode.sample: verdict for verdict in judged or ()}
        for result in results:
            verdict = verdicts.get(result.episode.sample)
            if verdict is None:
                fail_unjudged(result, "its runner was lost before it was judged")
            else:
                for name in (one.name for one in fields(verdict) if one.name != "episode"):
                    setattr(result, name, getattr(verdict, name))

    async def _least_busy(self) -> RunnerSeat:
        while not self._living:
            if not any(seat.is_expected for seat in self._seats):
                raise TrainingStoppedError(
                    f"all {len(self._seats)} runners of episodes are lost; the logs runner-rank*.log of the run's "
                    "folder say why. Start the run again to go on from its last checkpoint"
                )
            self._has_changed.clear()
            await self._has_changed.wait()
        return min(self._living, key=lambda seat: len(seat.plays) + seat.judges)

    def _lose(self, seat: RunnerSeat, reason: str) -> None:
        if seat.is_lost:
            return
        seat.is_expected = seat.lose() and self._processes is not None
        logger.warning(
            "%s is lost; the %d episodes that it played are played again by the %d others, and %s: %s",
            seat.name,
            len(seat.plays),
            len(self._living),
            "another one is started" if seat.is_expected else "no other one is started",
            reason,
        )
        seat.end_all()
        for task in seat.attending:
            if task is not asyncio.current_task():
                task.cancel()
        if self._processes is not None:
            self._keep(self._refill(seat, self._processes))

    async def _refill(self, lost: RunnerSeat, processes: Processes) -> None:
        """Start another runner; one that does not start may have been sent to a machine that was lost as well."""
        try:
            while lost.is_expected:
                try:
                    self._seat_again(lost, await processes.replace(lost.rank))
                    return
                except Exception as error:  # whatever keeps it from starting, the run goes on with the others
                    lost.is_expected = lost.lose()
                    comes = "another one is started" if lost.is_expected else "it does not come back"
                    logger.warning("%s did not start, and %s: %s", lost.name, comes, error)
            self._has_changed.set()
            # It may only have been silent, and would go on with episodes that others play.
            await processes.end(lost.rank)
        except Exception as error:  # nobody waits for this
            logger.warning("%s cannot be ended: %s", lost.name, error)
        finally:
            lost.is_expected = False
            self._has_changed.set()

    def _seat_again(self, lost: RunnerSeat, player: Player) -> None:
        seat = self._seats[lost.rank] = RunnerSeat(lost.rank, player, losses=lost.losses)
        lost.is_expected = False
        self._attend(seat)
        if self._gate is not None:
            seat.write().gate_is_open = self._gate.is_open
        logger.warning("%s is back", seat.name)

    def _attend(self, seat: RunnerSeat) -> None:
        for work in (self._listen(seat), self._tell(seat)):
            seat.attending.append(self._keep(self._guarded(seat, work)))

    async def _guarded(self, seat: RunnerSeat, work: Any) -> None:
        """What goes on as long as a runner lives; an error that is no loss of it ends the episodes that it plays."""
        try:
            await work
        except InfrastructureError as error:
            self._lose(seat, str(error))
        except Exception as error:  # nobody awaits this: who waits for its episodes has to hear of it
            seat.end_all(error)
            self._lose(seat, str(error))

    async def _tell(self, seat: RunnerSeat) -> None:
        """Send the seat's letters; while one is under way, the next is written."""
        while True:
            await seat.is_written.wait()
            seat.is_written.clear()
            letter, seat.letter = seat.letter, Letter()
            for part in letter.parts():
                await seat.player.take(part)

    async def _listen(self, seat: RunnerSeat) -> None:
        while True:
            reply = await seat.player.next_reply()
            for wish in reply.wishes:
                self._keep(self._answer(seat, wish))
            for ended in reply.opened():
                seat.end(ended)

    async def _answer(self, seat: RunnerSeat, wish: Wish) -> None:
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
        except Exception as error:  # a router is a plugin; the runner must not wait for its answer
            if not play.result.done():
                play.result.set_exception(error)
            seat.write().cancelled.append(wish.play)
            return
        seat.write().grants.append(grant)

    async def _look_at(self, seat: RunnerSeat) -> None:
        try:
            await bounded(seat.player.health(), HEALTH_SECONDS)
        except (InfrastructureError, OutOfTimeError) as error:
            self._lose(seat, str(error))

    def _tell_gate(self, is_open: bool) -> None:
        for seat in self._living:
            seat.write().gate_is_open = is_open

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _whole(result: EpisodeResult) -> Block:
    assert isinstance(result.to_judge, Block), "a runner sends what is to be judged by reference"
    return result.to_judge
