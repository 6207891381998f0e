"""A place for a runner of episodes, as the controller sees it: what it plays, what it is told, when it was lost."""

import asyncio
from dataclasses import dataclass, field

from agentverl.rollout.episode import EpisodeResult
from agentverl.rollout.loss_history import LossHistory
from agentverl.rollout.player import Ended, Letter, Player
from agentverl.rollout.router import Lease
from agentverl.single_controller.outcome import Failure


@dataclass(slots=True, eq=False)
class Play:
    """An episode that a runner plays."""

    lease: Lease
    result: asyncio.Future[EpisodeResult | None]
    """None where the runner is lost."""


@dataclass(slots=True, eq=False)
class RunnerSeat:
    """A place for a runner; when one is lost, another may take it."""

    rank: int
    player: Player
    plays: dict[int, Play] = field(default_factory=dict)
    judges: int = 0
    """Of how many prompts it judges trajectories."""
    letter: Letter = field(default_factory=Letter)
    """What the player is told next."""
    is_written: asyncio.Event = field(default_factory=asyncio.Event)
    attending: list[asyncio.Future[None]] = field(default_factory=list)
    is_lost: bool = False
    is_expected: bool = False
    """Whether another runner is being started."""
    losses: LossHistory = field(default_factory=LossHistory)

    @property
    def name(self) -> str:
        return f"runner {self.rank}"

    def write(self) -> Letter:
        """The letter that the player gets next, to add to at once."""
        self.is_written.set()
        return self.letter

    def end(self, ended: Ended) -> None:
        """Take in what became of an episode."""
        play = self.plays.get(ended.number)
        if play is None or play.result.done():
            return  # it was cancelled meanwhile
        if isinstance(ended.outcome, Failure):
            play.result.set_exception(ended.outcome.raised_on(self.name, self.rank))
        else:
            play.result.set_result(ended.outcome.value)

    def end_all(self, error: Exception | None = None) -> None:
        """Let whoever waits for the episodes know that they end here: by an error, or to be played elsewhere."""
        for play in self.plays.values():
            if play.result.done():
                continue
            if error is None:
                play.result.set_result(None)
            else:
                play.result.set_exception(error)

    def lose(self) -> bool:
        """Count a loss; whether another runner may take the place."""
        self.is_lost = True
        return self.losses.note()
