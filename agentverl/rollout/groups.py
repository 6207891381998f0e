"""The book of the groups under way: which samples run, which ended, and when a group is complete."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentverl.protocol.column_store import held
from agentverl.rollout.episode import Episode, EpisodeResult, Group

logger = logging.getLogger(__name__)

IncompleteGroups = Literal["complete", "train", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """What becomes of a group with a failed sample: `complete` it by a new one, `train` what is there, or `drop` it.

    `complete` gives up after as many new samples as the group has, and then does as `train`, which needs
    `min_group_size` samples.
    """

    incomplete_groups: IncompleteGroups = "complete"
    min_group_size: int = 2


@dataclass(slots=True, kw_only=True)
class OpenGroup:
    """One prompt whose samples are being played."""

    number: int
    uid: str
    row: Mapping[str, Any]
    size: int
    sampling_params: Mapping[str, Any]
    policy: GroupPolicy
    validation: bool = False
    step: int = 0
    results: list[EpisodeResult] = field(default_factory=list)
    failures: list[EpisodeResult] = field(default_factory=list)
    started: int = 0
    unjudged: list[EpisodeResult] = field(default_factory=list)
    """Samples that wait for the rest of the group to be played."""
    settled: int = 0
    """Samples that ended and whose server was given back."""

    def next_episode(self) -> Episode:
        """The group's next sample."""
        self.started += 1
        return Episode(
            uid=self.uid,
            sample=self.started - 1,
            row=self.row,
            sampling_params=self.sampling_params,
            validation=self.validation,
            step=self.step,
        )

    def note(self, result: EpisodeResult) -> bool:
        """Take in a sample that ended; True if a new one has to take its place."""
        if not result.failed:
            self.results.append(result)
            return False
        self.failures.append(result)
        if self.validation or self.policy.incomplete_groups != "complete":
            return False
        return len(self.failures) <= self.size

    def forget(self, lost: Collection[str]) -> list[Episode]:
        """Give up samples that ended, by their trajectory ids; returns as many new ones."""
        before = len(self.results) + len(self.unjudged)
        self.results = [result for result in self.results if result.episode.trajectory_id not in lost]
        waiting = [result for result in self.unjudged if result.episode.trajectory_id not in lost]
        self.settled += len(self.unjudged) - len(waiting)
        self.unjudged = waiting
        return [self.next_episode() for _ in range(before - len(self.results) - len(waiting))]

    @property
    def complete(self) -> bool:
        """Whether every sample that was started is settled."""
        return self.started >= self.size and self.settled == self.started

    def close(self) -> Group | None:
        """The group as it is trained or counted; None where the policy drops it."""
        fewest = min(self.policy.min_group_size, self.size)
        short = len(self.results) < self.size
        drops = self.policy.incomplete_groups == "drop" or len(self.results) < fewest
        if short and drops and not self.validation:
            return None
        by_sample = sorted(self.results, key=lambda result: result.episode.sample)
        return Group(uid=self.uid, row=self.row, results=by_sample, failures=self.failures)


def lost_with_runners(results: Sequence[EpisodeResult]) -> set[str]:
    """The ids of trajectories of which a store no longer holds all."""
    there = held([block for result in results for block in result.blocks])
    lost = {result.episode.trajectory_id for result in results if not there.issuperset(result.blocks)}
    if lost:
        logger.warning("%d trajectories are lost with their runner; new samples take their place", len(lost))
    return lost
