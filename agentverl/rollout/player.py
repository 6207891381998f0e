"""Plays episodes for a controller in another process; letters go both ways, each with all there is to say.

A call between processes costs as much as several turns of an episode, so none is made for a single one.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from agentverl.errors import InfrastructureError
from agentverl.protocol.column_store import Block, ColumnStore, fetched
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.shipping import Parcel, Shipping
from agentverl.single_controller.outcome import Failure, Outcome

MOST_A_LETTER = 32
"""Episodes in one letter: reading it holds the event loop up."""
_GATHER_SECONDS = 0.02
"""How long a trajectory that ended waits for others to be sent with."""


class Order(NamedTuple):
    """An episode to play, by the number that it is called by from then on."""

    number: int
    episode: Episode
    replica: RolloutReplica


class Wish(NamedTuple):
    """What an episode wants of its lease, which the controller holds."""

    number: int
    play: int
    """The number of the episode's order."""
    kind: Literal["open_more", "renew", "follow"]
    request_id: str = ""


class Grant(NamedTuple):
    """The server that a lease is on now, or why there is none."""

    wish: int
    replica: RolloutReplica | None
    refusal: str = ""


@dataclass(slots=True)
class Letter:
    """From the controller to a player."""

    orders: list[Order] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    """Numbers of orders that nobody waits for any more."""
    grants: list[Grant] = field(default_factory=list)
    gate_is_open: bool | None = None
    """Whether requests are let through; None: as before."""

    def parts(self) -> Iterator["Letter"]:
        """The same in letters of bearable size, to be read in this order."""
        first, rest = self.orders[:MOST_A_LETTER], self.orders[MOST_A_LETTER:]
        if not rest:
            yield self
            return
        yield Letter(first, [], self.grants, self.gate_is_open)
        yield from Letter(rest, self.cancelled).parts()


class Ended(NamedTuple):
    """What became of an order: an EpisodeResult, or what was raised."""

    number: int
    outcome: Outcome | Failure


class Reply(NamedTuple):
    """From a player to the controller."""

    numbers: list[int]
    """Of the orders whose results are in the parcel."""
    parcel: Parcel
    failures: list[Ended]
    wishes: list[Wish]

    def opened(self) -> list[Ended]:
        """What became of orders."""
        played = zip(self.numbers, self.parcel.opened(), strict=True)
        return [*(Ended(number, Outcome(result)) for number, result in played), *self.failures]


class Player:
    """Plays what letters order; tokens and images of what it played go into a store."""

    def __init__(self, runner: EpisodeRunner, store: ColumnStore) -> None:
        self._runner = runner
        self._shipping = Shipping(store)
        self._gate = Gate()
        self._plays: dict[int, asyncio.Future[None]] = {}
        self._ended: list[Ended] = []
        self._wishes: list[Wish] = []
        self._numbers = itertools.count()
        self._has_news = asyncio.Event()
        self._granted: dict[int, asyncio.Future[Grant]] = {}

    async def take(self, letter: Letter) -> None:
        """Begin, cancel and grant what a letter says."""
        if letter.gate_is_open is not None:
            self._gate.set(letter.gate_is_open)
        for order in letter.orders:
            play = self._plays[order.number] = asyncio.ensure_future(self._play(order))
            play.add_done_callback(partial(self._forget, order.number))
        for number in letter.cancelled:
            if number in self._plays:
                self._plays[number].cancel()
        for grant in letter.grants:
            waiting = self._granted.get(grant.wish)
            if waiting is not None and not waiting.done():
                waiting.set_result(grant)

    async def next_reply(self) -> Reply:
        """Wait until there is something to say."""
        await self._has_news.wait()
        if not self._wishes and len(self._ended) < MOST_A_LETTER:
            await asyncio.sleep(_GATHER_SECONDS)
        reply = self._reply(self._ended[:MOST_A_LETTER], self._wishes)
        self._ended, self._wishes = self._ended[MOST_A_LETTER:], []
        if not self._ended:
            self._has_news.clear()
        return reply

    async def judge(self, wholes: Sequence[Block]) -> Parcel:
        """Judge a prompt's trajectories, which any runner played."""
        columns = await asyncio.to_thread(fetched, wholes)
        results = [cast(EpisodeResult, columns[whole][0]) for whole in wholes]
        judging = self._runner.defer_judging()
        assert judging is not None, "only what a manager of groups judges is left to be judged"
        await judging.judge(results)
        return self._shipping.ready(results)

    async def health(self) -> int:
        """Episodes that are being played; that it answers is what counts."""
        return len(self._plays)

    async def _play(self, order: Order) -> None:
        episode = order.episode
        lease = BorrowedLease(self, order.number, order.replica, episode.trajectory_id)
        try:
            outcome: Outcome | Failure = Outcome(await self._runner.run(episode, lease, self._gate))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # raised where the result is waited for
            outcome = Failure.of(error)
        self._ended.append(Ended(order.number, outcome))
        self._has_news.set()

    def _reply(self, ended: list[Ended], wishes: list[Wish]) -> Reply:
        """With references in place of tokens and images."""
        results = {one.number: one.outcome.value for one in ended if isinstance(one.outcome, Outcome)}
        failures = [one for one in ended if isinstance(one.outcome, Failure)]
        try:
            return Reply(list(results), self._shipping.ready(list(results.values())), failures, wishes)
        except Exception as error:  # a store may be full, which whoever waits for the results has to hear
            lost = [Ended(number, Failure.of(error)) for number in results]
            return Reply([], self._shipping.ready([]), failures + lost, wishes)

    def _forget(self, number: int, _: asyncio.Future[None]) -> None:
        del self._plays[number]

    async def ask(self, play: int, kind: Literal["open_more", "renew", "follow"], request_id: str = "") -> Any:
        """Wish something of a lease and wait for it; returns the server that it is on.

        Raises:
            InfrastructureError: there is none.
        """
        number = next(self._numbers)
        waiting = self._granted[number] = asyncio.get_running_loop().create_future()
        self._wishes.append(Wish(number, play, kind, request_id))
        self._has_news.set()
        try:
            grant = await waiting
        finally:
            del self._granted[number]
        if grant.replica is None:
            raise InfrastructureError(grant.refusal, "model")
        return grant.replica


class BorrowedLease:
    """A lease whose owner is in another process."""

    __slots__ = ("_moving", "_opened", "_play", "_player", "_replica", "request_id")

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
