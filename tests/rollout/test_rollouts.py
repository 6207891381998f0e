"""Rollouts: groups in, groups out, from synchronous code."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import pytest

from agentverl.data.chat_template import ChatTemplate
from agentverl.errors import BadInputError, TrainingStoppedError
from agentverl.loop_thread import LoopThread
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult, Failure
from agentverl.rollout.groups import GroupPolicy
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import Lease, LeastLoadedRouter
from agentverl.trajectory import AgentLoopOutput
from tests.rollout.fake_replica import FakeReplica


class Stub:
    """Plays nothing: answers at once, fails where it is told to."""

    def __init__(self, fails: Callable[[Episode], bool] = lambda episode: False) -> None:
        self.fails = fails
        self.played: list[str] = []
        self.version = 0

    async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
        await gate.passed()
        self.played.append(episode.trajectory_id)
        if self.fails(episode):
            failure = Failure(boundary="sandbox", message="no room\nlong story")
            return EpisodeResult(episode=episode, failure=failure, termination=failure.termination)
        output = AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1], version_spans=[(1, self.version)])
        return EpisodeResult(episode=episode, score=1.0, outputs=[output])


@contextmanager
def playing(template: ChatTemplate, runner: Any, **settings: Any) -> Iterator[tuple[Rollouts, FakeReplica]]:
    replica = FakeReplica(template, lambda turn, chance: "")
    router = LeastLoadedRouter([cast(RolloutReplica, replica)])
    with Rollouts(runner, router, RolloutsSettings(**settings)) as rollouts:
        yield rollouts, replica


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"uid": f"0-{first + index}", "raw_prompt": []} for index in range(count)]


def test_groups_come_in_the_order_of_submission(template: ChatTemplate) -> None:
    stub = Stub()
    with playing(template, stub) as (rollouts, replica):
        rollouts.submit(rows(3), 4)
        groups = rollouts.next_groups(3)
        assert [group.uid for group in groups] == ["0-0", "0-1", "0-2"]
        assert [result.episode.sample for result in groups[0].results] == [0, 1, 2, 3]
        assert sorted(stub.played) == sorted(f"0-{uid}/{sample}" for uid in range(3) for sample in range(4))
        assert sorted(replica.opened) == sorted(replica.closed) == sorted(stub.played)
        with pytest.raises(BadInputError, match="only 0 groups"):
            rollouts.next_groups(1)


def test_a_failed_sample_is_replaced_by_a_new_one(template: ChatTemplate) -> None:
    def fails(episode: Episode) -> bool:
        return episode.trajectory_id == "0-1/2"

    with playing(template, Stub(fails)) as (rollouts, _):
        rollouts.submit(rows(8), 4)
        group = rollouts.next_groups(8)[1]
        assert [result.episode.sample for result in group.results] == [0, 1, 3, 4]
        assert [result.episode.sample for result in group.failures] == [2]
        assert group.excluded_fraction == 0.2


@pytest.mark.parametrize(("policy", "sizes"), [("train", [4, 2, 4, 4]), ("drop", [4, 4, 4])])
def test_incomplete_groups_follow_the_policy(template: ChatTemplate, policy: Any, sizes: list[int]) -> None:
    def fails(episode: Episode) -> bool:
        return episode.uid == "0-1" and episode.sample in (0, 3)

    settings: dict[str, Any] = {"group_policy": GroupPolicy(incomplete_groups=policy), "max_excluded_fraction": 0.5}
    with playing(template, Stub(fails), **settings) as (rollouts, _):
        rollouts.submit(rows(4), 4)
        assert [len(group.results) for group in rollouts.next_groups(4)] == sizes


def test_too_many_failures_stop_the_run_with_the_reason(template: ChatTemplate) -> None:
    with playing(template, Stub(lambda episode: episode.sample == 0)) as (rollouts, _):
        rollouts.submit(rows(2), 2)
        with pytest.raises(TrainingStoppedError, match=r"max_excluded_fraction=0.1.*error:sandbox: no room$"):
            rollouts.next_groups(2)


@pytest.mark.parametrize(
    ("failed", "said"),
    [([0, 1, 2, 3], "4 of the last 32 "), ([0, 20, 37, 38], "4 of the last 39 "), ([0, 1, 38, 39], "")],
)
def test_the_trajectory_that_is_too_much_stops_the_run(template: ChatTemplate, failed: list[int], said: str) -> None:
    stub = Stub(lambda episode: episode.sample in failed)
    policy = GroupPolicy(incomplete_groups="train")
    with playing(template, stub, group_policy=policy, max_concurrent_trajectories=1) as (rollouts, _):
        rollouts.submit(rows(1), 64)
        with pytest.raises(TrainingStoppedError, match=said) if said else nullcontext():
            rollouts.next_groups(1)


def test_one_failure_alone_stops_nothing(template: ChatTemplate) -> None:
    with playing(template, Stub(lambda episode: episode.trajectory_id == "0-0/0")) as (rollouts, _):
        rollouts.submit(rows(2), 2)
        assert len(rollouts.next_groups(2)) == 2


def test_a_group_that_always_fails_gives_up(template: ChatTemplate) -> None:
    stub = Stub(lambda episode: episode.uid == "0-0")
    with playing(template, stub, max_excluded_fraction=0.9) as (rollouts, _):
        rollouts.submit(rows(2), 2)
        assert [group.uid for group in rollouts.next_groups(2)] == ["0-1"]
        assert sum(played.startswith("0-0/") for played in stub.played) == 4


def test_failed_samples_of_validation_are_told_and_not_replaced(template: ChatTemplate) -> None:
    with playing(template, Stub(lambda episode: episode.sample == 1)) as (rollouts, _):
        rollouts.submit(rows(2), 2, validation=True)
        groups = rollouts.next_groups(2, validation=True)
        assert [(len(group.results), len(group.failures)) for group in groups] == [(1, 1), (1, 1)]


def test_each_validation_counts_for_itself(template: ChatTemplate) -> None:
    with playing(template, Stub(lambda episode: episode.uid == "0-1")) as (rollouts, _):
        rollouts.submit(rows(1), 2, validation=True)
        rollouts.next_groups(1, validation=True)
        rollouts.submit(rows(1, first=1), 2, validation=True)
        with pytest.raises(TrainingStoppedError, match="all 2 trajectories of validation failed"):
            rollouts.next_groups(1, validation=True)


def test_an_error_of_the_user_reaches_who_waits(template: ChatTemplate) -> None:
    class Wrong:
        async def run(self, *_: Any) -> EpisodeResult:
            raise BadInputError("no such plugin")

    with playing(template, Wrong()) as (rollouts, _):
        rollouts.submit(rows(1), 2)
        with pytest.raises(BadInputError, match="no such plugin"):
            rollouts.next_groups(1)


def test_rows_need_a_uid_of_their_own(template: ChatTemplate) -> None:
    with playing(template, Stub()) as (rollouts, _):
        with pytest.raises(BadInputError, match="needs a `uid`"):
            rollouts.submit([{"raw_prompt": []}], 1)
        rollouts.submit(rows(1), 1)
        with pytest.raises(BadInputError, match="already under way"):
            rollouts.submit(rows(1), 1)


def test_pausing_holds_back_and_state_keeps_what_is_under_way(template: ChatTemplate) -> None:
    stub = Stub()
    with playing(template, stub) as (rollouts, _):
        rollouts.pause()
        rollouts.submit(rows(2), 1)
        time.sleep(0.05)
        assert stub.played == []
        state = rollouts.state_dict()
        rollouts.resume()
        assert len(rollouts.next_groups(2)) == 2
        assert rollouts.state_dict() == {"groups": []}
    with playing(template, Stub()) as (again, _):
        again.load_state_dict(state)
        assert [group.uid for group in again.next_groups(2)] == ["0-0", "0-1"]


def test_stale_groups_are_played_again(template: ChatTemplate) -> None:
    stub = Stub()
    with playing(template, stub) as (rollouts, replica):
        rollouts.submit(rows(1), 2)
        rollouts.next_groups(1, max_staleness=1)
        rollouts.submit(rows(1, first=1), 2)
        while len(stub.played) < 4:
            time.sleep(0.001)
        stub.version = replica.weight_version = 2
        (group,) = rollouts.next_groups(1, max_staleness=1)
        assert group.results[0].weight_versions == (2, 2)
        assert stub.played.count("0-1/0") == 2


def test_no_more_run_at_a_time_than_allowed(template: ChatTemplate) -> None:
    class Counting(Stub):
        running = most = 0

        async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
            self.running += 1
            self.most = max(self.most, self.running)
            await lease.replica.generate(  # takes its time
                lease.request_id, prompt_ids=[1], sampling_params={"seed": 1, "max_tokens": 1, "stop_token_ids": [258]}
            )
            self.running -= 1
            return await super().run(episode, lease, gate)

    runner = Counting()
    with playing(template, runner, max_concurrent_trajectories=3) as (rollouts, replica):
        replica.delay_seconds = 0.005
        rollouts.submit(rows(4), 2)
        assert len(rollouts.next_groups(4)) == 4
        assert runner.most == 3


def test_in_deterministic_mode_leases_are_opened_before_anything_starts(template: ChatTemplate) -> None:
    held: list[int] = []

    class Looking(Stub):
        async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
            held.append(len(lease.replica.opened))  # type: ignore[attr-defined]
            return await super().run(episode, lease, gate)

    stub = Looking(lambda episode: episode.trajectory_id == "0-0/0")
    settings: dict[str, Any] = {"deterministic": True, "max_concurrent_trajectories": 4, "max_excluded_fraction": 0.5}
    with playing(template, stub, **settings) as (rollouts, replica):
        rollouts.submit(rows(3), 2)
        assert len(rollouts.next_groups(3)) == 3
        assert min(held) >= 4
        assert replica.events.index("open 0-0/2") < replica.events.index("close 0-0/0")
        assert sorted(replica.opened) == sorted(replica.closed)


def test_closing_cancels_what_is_under_way(template: ChatTemplate) -> None:
    cancelled = threading.Event()

    class Endless:
        async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError

    with playing(template, Endless()) as (rollouts, replica):
        rollouts.submit(rows(1), 1)
        while not replica.opened:
            time.sleep(0.001)
    assert cancelled.is_set()
    assert replica.closed == ["0-0/0"]


def test_samples_whose_tokens_are_lost_are_played_again_under_new_numbers(template: ChatTemplate) -> None:
    class Keeping(Stub):
        async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
            result = await super().run(episode, lease, gate)
            Keeper().keep(result)
            if result.episode.sample in (1, 4):
                assert result.kept is not None
                block = result.kept.columns["responses"]
                block.store.drop([block.key])
            return result

    stub = Keeping()
    with playing(template, stub) as (rollouts, replica):
        rollouts.submit(rows(2), 3)
        groups = rollouts.next_groups(2)
    assert [[result.episode.sample for result in group.results] for group in groups] == [[0, 2, 3], [0, 2, 3]]
    assert len(stub.played) == 8
    assert sorted(replica.opened) == sorted(replica.closed) == sorted(stub.played)


def test_samples_that_are_lost_use_up_no_replacement_of_failed_ones(template: ChatTemplate) -> None:
    class Losing(Stub):
        async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult:
            result = await super().run(episode, lease, gate)
            Keeper().keep(result)
            if result.episode.sample < 3:
                assert result.kept is not None
                block = result.kept.columns["responses"]
                block.store.drop([block.key])
            return result

    stub = Losing(lambda episode: episode.sample in (3, 4))
    with playing(template, stub, max_excluded_fraction=1.0) as (rollouts, _):
        rollouts.submit(rows(1), 3)
        (group,) = rollouts.next_groups(1)
    assert [result.episode.sample for result in group.results] == [5, 6, 7]
    assert [result.episode.sample for result in group.failures] == [3, 4]


def test_a_coroutine_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        time.sleep(0.3)

    async def greedy() -> None:
        work()

    thread = LoopThread(stall_seconds=0.1)
    thread.run(greedy())
    thread.run(greedy())
    thread.close()
    assert caplog.text.count("greedy has blocked the event loop") == 1
    assert "time.sleep(0.3)" in caplog.text
