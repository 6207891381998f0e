"""Judging goes on beside the rollout: it holds neither slot nor server, alone or with its group."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.errors import BoundaryError, DeadlineError, TrainingStoppedError
from agentverl.rewards.base import RewardInput, RewardManager, RewardResult
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult, Failure
from agentverl.rollout.judging import Judging, weigh_turns
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import Lease, LeastLoadedRouter
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.settings.reward import RewardSettings
from agentverl.trajectory import AgentLoopOutput, Termination, Turn
from tests.rollout.conftest import MakeHouse
from tests.rollout.fake_replica import FakeReplica
from tests.rollout.test_runner import Fixed


class Player:
    """Plays nothing, and leaves its trajectories to be judged; those whose number is in `fails` fail."""

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails = fails

    async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
        if episode.sample in self.fails:
            failure = Failure(boundary="tool", message="no tool")
            return EpisodeResult(episode=episode, failure=failure, termination=failure.termination)
        output = AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1])
        judged = RewardInput(data_source="d", solution_str=str(episode.sample))
        return EpisodeResult(episode=episode, outputs=[output], to_judge=judged)


class Slow(RewardManager):
    """Takes its time."""

    def __init__(self) -> None:
        super().__init__(RewardSettings())
        self.under_way = self.most = 0

    async def score(self, judged: RewardInput, deadline: Any = None) -> RewardResult:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.05)
        self.under_way -= 1
        return RewardResult(score=1.0)


class Together(RewardManager):
    """Scores the place in the group; the first call fails where told to."""

    scores_groups = True

    def __init__(self, fails_first: Sequence[int] = ()) -> None:
        super().__init__(RewardSettings())
        self.groups: list[list[str]] = []
        self.fails_first = fails_first

    async def score(self, judged: RewardInput, deadline: Any = None) -> RewardResult:
        raise AssertionError("groups are scored")

    async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
        self.groups.append([judged.solution_str for judged in group])
        fails = self.fails_first if len(self.groups) == 1 else ()
        return [
            BoundaryError("no", "reward") if place in fails else RewardResult(score=float(place))
            for place in range(len(group))
        ]


@contextmanager
def judging(
    template: ChatTemplate, manager: RewardManager, player: Player | None = None, **settings: Any
) -> Iterator[tuple[Rollouts, FakeReplica]]:
    replica = FakeReplica(template, lambda turn, chance: "")
    router = LeastLoadedRouter([cast(RolloutReplica, replica)])
    judge = Judging(manager, RunnerSettings(limits=ChatLimits(max_response_length=64)), Keeper())
    with Rollouts(player or Player(), router, RolloutsSettings(**settings), judging=judge) as rollouts:
        yield rollouts, replica


def rows(count: int) -> list[dict[str, Any]]:
    return [{"uid": f"0-{index}", "raw_prompt": []} for index in range(count)]


def test_what_is_judged_holds_neither_slot_nor_server(template: ChatTemplate) -> None:
    manager = Slow()
    with judging(template, manager, max_concurrent_trajectories=1) as (rollouts, replica):
        rollouts.submit(rows(2), 4)
        groups = rollouts.next_groups(2)
    assert manager.most > 4
    assert [result.score for group in groups for result in group.results] == [1.0] * 8
    assert all(result.outputs[0].reward_score == 1.0 for group in groups for result in group.results)
    assert sorted(replica.opened) == sorted(replica.closed)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_group_is_judged_when_its_last_sample_ends(template: ChatTemplate, deterministic: bool) -> None:
    manager = Together()
    settings: dict[str, Any] = {"max_concurrent_trajectories": 2, "deterministic": deterministic}
    with judging(template, manager, **settings) as (rollouts, _):
        rollouts.submit(rows(2), 4)
        groups = rollouts.next_groups(2)
    assert sorted(manager.groups) == [["0", "1", "2", "3"]] * 2
    assert [[result.score for result in group.results] for group in groups] == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_a_sample_that_fails_does_not_keep_its_group_waiting(template: ChatTemplate) -> None:
    manager = Together()
    with judging(template, manager, Player(fails=[1]), max_excluded_fraction=1.0) as (rollouts, _):
        rollouts.submit(rows(1), 3)
        (group,) = rollouts.next_groups(1)
    assert manager.groups == [["0", "2", "3"]]
    assert (len(group.results), len(group.failures)) == (3, 1)


def test_what_fails_in_its_group_is_completed_by_new_samples(template: ChatTemplate) -> None:
    manager = Together(fails_first=[0, 2])
    with judging(template, manager, max_excluded_fraction=1.0) as (rollouts, _):
        rollouts.submit(rows(1), 3)
        (group,) = rollouts.next_groups(1)
    assert manager.groups == [["0", "1", "2"], ["3", "4"]]
    assert [result.episode.sample for result in group.results] == [1, 3, 4]
    assert {failure.termination for failure in group.failures} == {Termination.ERROR_REWARD}


def test_a_manager_that_raises_fails_the_group_with_the_reason(template: ChatTemplate) -> None:
    class Broken(Together):
        async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
            raise ZeroDivisionError("oops")

    class Short(Together):
        async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
            return []

    for manager, said in ((Broken(), "ZeroDivisionError: oops"), (Short(), "gave 0 results for 2")):
        with judging(template, manager) as (rollouts, _):
            rollouts.submit(rows(1), 2)
            with pytest.raises(TrainingStoppedError, match=said):
                rollouts.next_groups(1)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -1e16])
def test_a_score_that_cannot_be_learnt_from_is_a_failure(template: ChatTemplate, score: float) -> None:
    class Alone(Slow):
        async def score(self, judged: RewardInput, deadline: Any = None) -> RewardResult:
            return RewardResult(score=score)

    class Grouped(Together):
        async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
            return [RewardResult(score=score) for _ in group]

    for manager in (Alone(), Grouped()):
        with judging(template, manager) as (rollouts, _):
            rollouts.submit(rows(1), 2)
            said = f"{type(manager).__name__} gave the score {score:g}; expected a finite number of at most 1e+15"
            with pytest.raises(TrainingStoppedError, match=re.escape(said)):
                rollouts.next_groups(1)


async def test_a_deadline_at_the_reward_is_tried_once_more(house: MakeHouse) -> None:
    manager = Fixed(DeadlineError("late", "reward"), 1.0)
    result = await house(reward=manager, retry_backoff_seconds=0.0).play()
    assert (result.score, len(manager.seen)) == (1.0, 2)
    failing = await house(reward=Fixed(DeadlineError("late", "reward")), retry_backoff_seconds=0.0).play()
    assert failing.termination is Termination.ERROR_REWARD
    assert failing.outputs[0].termination is Termination.ERROR_REWARD


async def test_the_environments_score_goes_to_a_manager_that_asks_for_it(house: MakeHouse) -> None:
    class Asking(Fixed):
        asks_environment = True

    manager = Asking(7.0)
    stage = house(reward=manager, environment="tests.rollout.worlds:Greeting", has_custom_reward=True)
    assert (await stage.play()).score == 7.0
    environment = manager.seen[0].environment
    assert environment is not None
    assert environment.score == 2.0


def test_turn_rewards_are_weighed_by_name_and_only_once() -> None:
    turn = Turn(role="assistant", start=0, stop=1, reward=3.0, rewards={"search": 1.0, "turn": 2.0})
    unnamed = Turn(role="assistant", start=0, stop=1, reward=4.0)
    output = AgentLoopOutput(prompt_ids=[1], response_ids=[1], response_mask=[1], turns=[turn, unnamed])
    result = EpisodeResult(episode=Episode(uid="0", sample=0, row={}, sampling_params={}), outputs=[output])
    for _ in range(2):
        weigh_turns(result, {"search": 0.5, "turn": 2.0})
        assert (turn.reward, unnamed.reward) == (4.5, 8.0)
