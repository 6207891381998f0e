"""The book of the groups under way: which samples run, which ended, and when a group is complete."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentverl.rollout.episode import Episode, EpisodeResult, Group

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
        return self.started < 2 * self.size

    def forget(self, lost: Collection[int]) -> list[Episode]:
        """Give up samples by their numbers; returns as many new ones."""
        self.results = [result for result in self.results if result.episode.sample not in lost]
        return [self.next_episode() for _ in lost]

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
