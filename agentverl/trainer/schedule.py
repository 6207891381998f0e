"""When trajectories are generated, trained on and weights synchronised; never how."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentverl.data.dataloader import PromptLoader
from agentverl.rollout.episode import Group
from agentverl.rollout.rollouts import Rollouts
from agentverl.trainer.group_filter import GroupFilter

_GREEDY = "/greedy"


@dataclass(slots=True)
class Sampled:
    """What a step learns from."""

    groups: list[Group]
    greedy: Mapping[str, Group] = field(default_factory=dict)
    """By uid: the greedy sample of each prompt, where the estimator asks for one."""
    metrics: dict[str, float] = field(default_factory=dict)


class Schedule(ABC):
    """Subclass to overlap generation and training otherwise."""

    @abstractmethod
    def next_groups(self) -> Sampled:
        """The groups of the next step."""


class SynchronousSchedule(Schedule):
    """Generate a batch, train on all of it, synchronise, again: each token is sampled by the weights it updates.

    Args:
        samples: a prompt.
        group_filter: groups that it refuses are replaced by fresh prompts, exactly as many.
        greedy_baseline: also roll out each prompt greedily.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        loader: PromptLoader,
        samples: int,
        *,
        group_filter: GroupFilter | None = None,
        greedy_baseline: bool = False,
    ) -> None:
        self._rollouts = rollouts
        self._loader = loader
        self._samples = samples
        self._filter = group_filter
        self._greedy_baseline = greedy_baseline

    def next_groups(self) -> Sampled:
        """The groups of the next step, in the order of their prompts.

        Raises:
            TrainingStoppedError: the filter refused more groups than it may.
        """
        groups = self._roll_out(self._loader.batch_size)
        if self._filter is None:
            return self._with_baselines(groups, {})
        wanted, played = len(groups), len(groups)
        kept = self._filter.kept(groups)
        while len(kept) < wanted:
            self._filter.check_limit(played, wanted, len(kept))
            fresh = self._roll_out(wanted - len(kept))
            played += len(fresh)
            kept += self._filter.kept(fresh)
        metrics = {
            "training/filter_groups/evicted_samples": float((played - len(kept)) * self._samples),
            "training/filter_groups/generated_batches": played / wanted,
        }
        return self._with_baselines(kept, metrics)

    def _roll_out(self, prompts: int) -> list[Group]:
        rows = self._loader.take(prompts)
        self._rollouts.submit(rows, self._samples)
        return self._rollouts.next_groups(len(rows), max_staleness=0)

    def _with_baselines(self, groups: list[Group], metrics: dict[str, float]) -> Sampled:
        if not self._greedy_baseline:
            return Sampled(groups, metrics=metrics)
        self._rollouts.submit([{**group.row, "uid": group.uid + _GREEDY} for group in groups], 1, greedy=True)
        found = self._rollouts.next_groups(len(groups), max_staleness=0)
        greedy = {group.uid.removesuffix(_GREEDY): group for group in found}
        # Without its baseline a prompt cannot be learnt from; its greedy sample failed again and again.
        return Sampled([group for group in groups if group.uid in greedy], greedy, metrics)
