"""Groups without signal give way to fresh prompts, exactly as many, and no prompt is lost or favoured."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from agentverl.data.dataloader import PromptLoader
from agentverl.errors import BadInputError, TrainingStoppedError
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.rollouts import Rollouts
from agentverl.settings.algorithm import FilterGroupsSettings
from agentverl.trainer.group_filter import GroupFilter
from agentverl.trainer.group_metrics import group_metrics
from agentverl.trainer.schedule import SynchronousSchedule
from agentverl.trajectory import AgentLoopOutput, Turn


def group_of(row: Mapping[str, Any], scores: Sequence[float]) -> Group:
    results = [
        EpisodeResult(
            episode=Episode(uid=row["uid"], sample=sample, row=row, sampling_params={}),
            score=score,
            components={"acc": float(score > 0.5)},
        )
        for sample, score in enumerate(scores)
    ]
    return Group(uid=row["uid"], row=row, results=results, failures=[])


def rewarded_turn() -> AgentLoopOutput:
    turn = Turn(role="assistant", start=0, stop=1, reward=0.5)
    return AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1], turns=[turn])


class ScriptedRollouts:
    """A fake: each row says what its samples score."""

    def __init__(self) -> None:
        self.submitted: list[list[str]] = []
        self.greedy: list[bool] = []
        self._waiting: list[Group] = []

    def submit(self, rows: Sequence[Mapping[str, Any]], n: int, *, greedy: bool = False) -> None:
        self.submitted.append([row["uid"] for row in rows])
        self.greedy.append(greedy)
        self._waiting += [group_of(row, [0.25] if greedy else row["scores"]) for row in rows]

    def next_groups(self, count: int, max_staleness: int) -> list[Group]:
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


def schedule_of(
    scores: Sequence[Sequence[float]], batch_size: int, *, greedy_baseline: bool = False, **keys: Any
) -> tuple[SynchronousSchedule, ScriptedRollouts]:
    loader = PromptLoader([{"scores": row} for row in scores], batch_size=batch_size, shuffle=False)
    rollouts = ScriptedRollouts()
    group_filter = GroupFilter(FilterGroupsSettings(enable=True, **keys))
    schedule = SynchronousSchedule(
        cast(Rollouts, rollouts), loader, 2, group_filter=group_filter, greedy_baseline=greedy_baseline
    )
    return schedule, rollouts


def test_refused_groups_are_refilled_exactly() -> None:
    flat, mixed = [1.0, 1.0], [0.0, 1.0]
    schedule, rollouts = schedule_of([flat, mixed, flat, flat, mixed, mixed, mixed, mixed], 3)
    sampled = schedule.next_groups()
    assert [group.uid for group in sampled.groups] == ["0-1", "0-4", "0-5"]
    assert rollouts.submitted == [["0-0", "0-1", "0-2"], ["0-3", "0-4"], ["0-5"]]
    assert sampled.metrics["training/filter_groups/evicted_samples"] == 6
    assert sampled.metrics["training/filter_groups/generated_batches"] == 2


def test_scores_that_differ_by_rounding_are_equal() -> None:
    close = [0.1 + 0.2, 0.3]
    schedule, _ = schedule_of([close, [0.0, 1.0], [0.0, 1.0]], 1)
    assert [group.uid for group in schedule.next_groups().groups] == ["0-1"]


def test_rewards_of_turns_count_as_earned() -> None:
    group = group_of({"uid": "0"}, [1.0, 1.0])
    assert GroupFilter(FilterGroupsSettings(enable=True)).kept([group]) == []
    group.results[0].outputs = [rewarded_turn()]
    assert GroupFilter(FilterGroupsSettings(enable=True)).kept([group]) == [group]


def test_groups_that_earn_the_same_are_told() -> None:
    flat, differing = (group_of({"uid": "0"}, scores) for scores in ([0.1 + 0.2, 0.3], [0.0, 1.0]))
    assert group_metrics([flat, differing])["training/groups_without_signal"] == 0.5
    flat.results[0].outputs = [rewarded_turn()]
    assert group_metrics([flat, differing])["training/groups_without_signal"] == 0


def test_a_component_can_be_the_metric() -> None:
    schedule, _ = schedule_of([[0.6, 0.9], [0.4, 0.6], [0.0, 1.0]], 1, metric="acc")
    assert [group.uid for group in schedule.next_groups().groups] == ["0-1"]
    with pytest.raises(BadInputError, match="metric=format: the reward has no such number; its components: acc"):
        schedule_of([[0.0, 1.0]], 1, metric="format")[0].next_groups()


def test_a_limit_ends_the_run_with_what_to_do() -> None:
    schedule, rollouts = schedule_of([[1.0, 1.0]] * 8, 2, max_num_gen_batches=2)
    with pytest.raises(TrainingStoppedError, match="max_num_gen_batches=2 is used up: 0 of 4 groups differ in reward"):
        schedule.next_groups()
    assert sum(map(len, rollouts.submitted)) == 4


def test_baselines_are_rolled_out_greedily_for_the_groups_that_stay() -> None:
    schedule, rollouts = schedule_of([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]], 1, greedy_baseline=True)
    sampled = schedule.next_groups()
    assert list(sampled.greedy) == [group.uid for group in sampled.groups] == ["0-1"]
    assert rollouts.greedy == [False, False, True]
