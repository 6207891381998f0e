"""A process that plays episodes; what only the controller can decide, such as another server, it asks for."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agentverl import blocking
from agentverl.errors import BadInputError, InfrastructureError
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.runner import EpisodeRunner
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.worker import Worker
from agentverl.stall_watch import StallWatch


@dataclass(frozen=True, slots=True)
class Wish:
    """What an episode wants of its lease, which the controller holds."""

    number: int
    play: int
    """The number that the episode was given to the runner with."""
    kind: Literal["open_more", "renew", "follow"]
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """The server that a lease is on now, or why there is none."""

    replica: RolloutReplica | None
    refusal: str = ""


class Player:
    """Plays episodes for a controller in another process."""

    def __init__(self, runner: EpisodeRunner) -> None:
        self._runner = runner
        self._gate = Gate()
        self._numbers = itertools.count()
        self._wishes: list[Wish] = []
        self._wished = asyncio.Event()
        self._granted: dict[int, asyncio.Future[Grant]] = {}

    async def play(self, number: int, episode: Episode, replica: RolloutReplica) -> EpisodeResult:
        """Play an episode on a server; the result comes without the row, which the controller has.

        Raises:
            BadInputError: see `EpisodeRunner.run`.
        """
        result = await self._runner.run(
            episode, BorrowedLease(self, number, replica, episode.trajectory_id), self._gate
        )
        result.episode = Episode(uid=episode.uid, sample=episode.sample, row={}, sampling_params={})
        return result

    async def next_wishes(self) -> list[Wish]:
        """Wait until episodes want something of their leases."""
        await self._wished.wait()
        self._wished.clear()
        wishes, self._wishes = self._wishes, []
        return wishes

    async def grant(self, number: int, grant: Grant) -> None:
        """Answer a wish."""
        waiting = self._granted.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(grant)

    async def set_gate(self, is_open: bool) -> None:
        """Hold back requests, or no longer."""
        if is_open:
            self._gate.open()
        else:
            self._gate.close()

    async def health(self) -> int:
        """Episodes whose wishes are open; that it answers is what counts."""
        return len(self._granted)

    async def ask(self, play: int, kind: Literal["open_more", "renew", "follow"], request_id: str = "") -> Any:
        """Wish something of a lease and wait for it; returns the server that it is on.

        Raises:
            InfrastructureError: there is none.
        """
        number = next(self._numbers)
        waiting = self._granted[number] = asyncio.get_running_loop().create_future()
        self._wishes.append(Wish(number, play, kind, request_id))
        self._wished.set()
        try:
            grant = await waiting
        finally:
            del self._granted[number]
        if grant.replica is None:
            raise InfrastructureError(grant.refusal, "model")
        return grant.replica


class BorrowedLease:
    """A lease whose owner is in another process."""

    def __init__(self, player: Player, play: int, replica: RolloutReplica, request_id: str) -> None:
        self.request_id = request_id
        self._replica = replica
        self._player = player
        self._play = play
        self._opened = {request_id}
        self._moving = asyncio.Lock()

    @property
    def replica(self) -> RolloutReplica:
        return self._replica

    async def open_more(self, request_id: str) -> None:
        """Also hold a request id of a sub-agent."""
        if request_id not in self._opened:
            self._opened.add(request_id)
            await self._player.ask(self._play, "open_more", request_id)

    async def renew(self, failed: RolloutReplica | None = None) -> None:
        """Go on with another server; nothing is done where the lease moved on from the failed one already."""
        async with self._moving:
            if failed in (None, self._replica):
                self._move(await self._player.ask(self._play, "renew"))

    async def follow(self) -> None:
        """Stay, or go on with another server where this one left rotation."""
        async with self._moving:
            self._move(await self._player.ask(self._play, "follow"))

    def _move(self, replica: RolloutReplica) -> None:
        # The same server comes as another object from another process.
        if replica != self._replica:
            self._replica, self._opened = replica, {self.request_id}


class RunnerWorker(Worker):
    """Holds the runner of one process. Await `start_player` first.

    Args:
        make_runner: makes the runner with plugins that this process finds by their names.
    """

    def __init__(self, make_runner: Callable[[], EpisodeRunner]) -> None:
        self._make_runner = make_runner
        self._runner: EpisodeRunner | None = None
        self._player: Player | None = None
        self._watch: StallWatch | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def start_player(self) -> None:
        """Make the runner and what its tools share.

        Raises:
            BadInputError: a plugin that the controller finds is not found here.
        """
        self._runner = await blocking.call(self._make_runner)
        await self._runner.setup()
        self._player = Player(self._runner)
        self._watch = StallWatch(threading.get_ident(), 1.0)

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def player(self) -> Player:
        """Plays episodes, after `start_player`."""
        if self._player is None:
            raise BadInputError("the runner does not play yet: await start_player() first")
        return self._player

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def stop_player(self) -> None:
        """Give back what tools, environments and the reward manager hold; may be called twice."""
        if self._watch is not None:
            self._watch.stop()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.teardown()
