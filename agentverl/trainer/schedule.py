"""When trajectories are generated, trained on and weights synchronised; never how."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from agentverl.rollout.episode import Group
from agentverl.rollout.rollouts import Rollouts


class Schedule(ABC):
    """Subclass to overlap generation and training otherwise."""

    @abstractmethod
    def next_groups(self) -> list[Group]:
        """The groups of the next step."""


class SynchronousSchedule(Schedule):
    """Generate a batch, train on all of it, synchronise, again: each token is sampled by the weights it updates."""

    def __init__(self, rollouts: Rollouts, loader: Iterator[list[dict[str, Any]]], samples: int) -> None:
        self._rollouts = rollouts
        self._loader = loader
        self._samples = samples

    def next_groups(self) -> list[Group]:
        rows = next(self._loader)
        self._rollouts.submit(rows, self._samples)
        return self._rollouts.next_groups(len(rows), max_staleness=0)
