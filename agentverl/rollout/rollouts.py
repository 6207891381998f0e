"""What the trainer sees of rollouts: rows go in, complete groups of trajectories come out."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentverl.loop_thread import LoopThread
from agentverl.rollout.episode import Group
from agentverl.rollout.group_book import GroupBook
from agentverl.rollout.group_player import GroupPlayer, Runner
from agentverl.rollout.groups import OpenGroup, lost_with_runners
from agentverl.rollout.judging import Judge
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import Router


class Rollouts:
    """Plays episodes in the background of synchronous code; a context manager, or `close` it.

    Args:
        thread: the loop that the servers live on; Rollouts that make their own also close it.
        judging: judges what the runner leaves to be judged, while the trajectory's server and slot serve another.
    """

    def __init__(
        self,
        runner: Runner,
        router: Router,
        settings: RolloutsSettings,
        *,
        thread: LoopThread | None = None,
        judging: Judge | None = None,
    ) -> None:
        self.step = 0
        """That trajectories are sampled for."""
        self.router = router
        self.thread = thread or LoopThread()
        self._owns_thread = thread is None
        self._close_timeout_seconds = settings.close_timeout_seconds
        self._book = GroupBook(settings)
        self._player = GroupPlayer(runner, router, settings, self._book, judging)

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, rows: Sequence[Mapping[str, Any]], n: int, *, validation: bool = False, greedy: bool = False
    ) -> None:
        """Begin `n` trajectories for each row, with `greedy` of the likeliest tokens; each row has its own `uid`.

        Raises:
            BadInputError: a row without `uid`, or with one that another has.
        """
        groups = self._book.open(rows, n, validation=validation, greedy=greedy, step=self.step)
        self.thread.start(self._player.play(groups))

    def next_groups(self, count: int, max_staleness: int | None = None, *, validation: bool = False) -> list[Group]:
        """Wait for `count` groups, in the order in which they were submitted; fewer where the rest was dropped.

        With `max_staleness`, groups sampled with weights older than that many versions are played again.

        Raises:
            BadInputError: more groups are asked for than were submitted.
            TrainingStoppedError: too many trajectories failed, or no group is left.
        """

        def replay_stale() -> None:
            if max_staleness is not None and not validation:
                self._replay_older_than(self.router.weight_version - max_staleness)

        while True:
            groups = self._book.wait_for(count, validation=validation, before_each_look=replay_stale)
            if not self._replay_lost(groups):
                return self._book.hand_out(groups, count, validation=validation)

    def pause(self) -> None:
        """Hold back new requests and new trajectories; the wait counts for no deadline."""
        self.thread.loop.call_soon_threadsafe(self._player.gate.close)

    def resume(self) -> None:
        """Go on after `pause`."""
        self.thread.loop.call_soon_threadsafe(self._player.gate.open)

    @property
    def excluded_fraction(self) -> float:
        """The share of the last trajectories that failed."""
        return self._book.excluded_fraction

    def state_dict(self) -> dict[str, Any]:
        """The training rows that were submitted but not handed out."""
        return {"groups": [{"row": dict(group.row), "n": group.size} for group in self._book.submitted()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Submit again what was under way when the state was taken."""
        for entry in state["groups"]:
            self.submit([entry["row"]], entry["n"])

    def close(self) -> None:
        """Cancel what is under way; tools and environments are closed under their deadline."""
        if self._owns_thread:
            self.thread.close(self._close_timeout_seconds)
        elif not self.thread.closed:
            self.thread.end(self._player.cancel(), "the rollouts", self._close_timeout_seconds + 5.0)

    def _replay_older_than(self, weight_version: int) -> None:
        for group in self._book.replace_older_than(weight_version, step=self.step):
            self.thread.start(self._player.play([group]))

    def _replay_lost(self, groups: Sequence[OpenGroup]) -> bool:
        """Play new samples for those whose tokens went with their runner; whether there are any."""
        # This asks other processes, so not while the book is locked, for which all waits that is played.
        lost = lost_with_runners([result for group in groups for result in group.results])
        again = self._book.forget(groups, lost)
        for group, episodes in again:
            self.thread.start(self._player.play_instead(group, episodes))
        return bool(again)
