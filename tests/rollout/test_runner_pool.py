"""Runners in other places than the controller: episodes come back, leases stay, what is lost is played again."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.deadlines import Deadline
from agentverl.errors import BoundaryError, InfrastructureError, PluginError, TrainingStoppedError
from agentverl.loop_thread import LoopThread
from agentverl.protocol.column_store import Block, MemoryColumnStore, referred, resolve
from agentverl.protocol.columns import object_array
from agentverl.rewards.base import RewardInput, RewardManager, RewardResult
from agentverl.rollout.batching import assemble
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.player import MOST_A_LETTER, Letter, Order, Player, Reply
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_pool import RunnerPool
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.runner_worker import RunnerWorker
from agentverl.rollout.shipping import Parcel
from agentverl.settings.reward import RewardSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.outcome import Outcome
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_errors import WorkerError
from agentverl.tools.loading import tools_of_entries
from agentverl.tools.toolset import Toolset
from tests.agent_loops.scripted import TinyParser
from tests.rollout.conftest import QUESTION
from tests.rollout.fake_replica import FakeReplica


class MortalPlayer(Player):
    """Stands for a player whose process can be killed: its calls then raise what those of a lost process raise."""

    def __init__(self, runner: EpisodeRunner) -> None:
        super().__init__(runner, MemoryColumnStore())
        self.dead = asyncio.Event()
        self.begun: list[str] = []
        self.letters = 0

    async def take(self, letter: Letter) -> None:
        self.begun += [order.episode.trajectory_id for order in letter.orders]
        self.letters += 1
        await self._or_dead(super().take(letter))

    async def next_reply(self) -> Reply:
        reply: Reply = await self._or_dead(super().next_reply())
        return reply

    async def _or_dead(self, work: Any) -> Any:
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            death.cancel()
        if not task.done():
            raise InfrastructureError("its process died", "model")
        return task.result()


class World:
    """Two players, two servers, one router."""

    starts_that_fail = 0

    def __init__(self, template: ChatTemplate, reward: RewardManager | None = None) -> None:
        def runner() -> EpisodeRunner:
            limits = ChatLimits(max_response_length=2048)
            settings = RunnerSettings(limits=limits, default_agent_loop="tool_agent", retry_backoff_seconds=0.001)
            tools = Toolset(tools_of_entries(("calculator",)))
            parts = EpisodeParts(template=template, parser=TinyParser(), toolset=tools, reward=reward)
            made = EpisodeRunner(settings, parts)
            made.defer_judging()
            return made

        self.replicas = [FakeReplica(template, lambda turn, chance: "It is 5.") for _ in range(2)]
        self.router = LeastLoadedRouter([cast(RolloutReplica, replica) for replica in self.replicas])
        self.make_player: Callable[[], MortalPlayer] = lambda: MortalPlayer(runner())
        self.players = [self.make_player() for _ in range(2)]
        self.pool = RunnerPool(self.players)
        self.gate = Gate()
        self.ended: list[int] = []

    async def play(self, sample: int) -> EpisodeResult:
        params = {"temperature": 1.0}
        episode = Episode(uid="0-1", sample=sample, row={"raw_prompt": QUESTION}, sampling_params=params)
        lease = await self.router.lease(episode.trajectory_id)
        try:
            return await self.pool.run(episode, lease, self.gate)
        finally:
            await lease.close()

    async def replace(self, rank: int) -> Player:
        """Takes its time, as a process that starts."""
        await asyncio.sleep(0.02)
        if self.starts_that_fail:
            self.starts_that_fail -= 1
            raise WorkerError("no room", rank, "")
        self.players[rank] = self.make_player()
        return self.players[rank]

    async def end(self, rank: int) -> None:
        self.ended.append(rank)

    def has_another_than(self, lost: Player) -> bool:
        return self.players[0] is not lost and len(self.pool.playing) == 2

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(2000):
            if holds():
                return
            await asyncio.sleep(0.005)
        raise TimeoutError


@pytest.fixture
async def replacing(template: ChatTemplate) -> Any:
    made = World(template)
    made.pool = RunnerPool(made.players, made)
    await made.pool.open()
    yield made
    await made.pool.close()


@pytest.fixture
async def world(template: ChatTemplate) -> Any:
    made = World(template)
    await made.pool.open()
    yield made
    await made.pool.close()


async def test_episodes_go_to_all_runners_and_come_back_with_their_rows(world: World) -> None:
    results = await asyncio.gather(*(world.play(sample) for sample in range(6)))
    assert [len(player.begun) for player in world.players] == [3, 3]
    assert [result.episode.sample for result in results] == list(range(6))
    assert all(result.episode.row["raw_prompt"] == QUESTION and not result.failed for result in results)
    assert world.pool.playing == [0, 0]
    assert world.router.total_held == 0


async def test_the_controller_gets_neither_tokens_nor_messages(world: World) -> None:
    result = await world.play(0)
    (output,) = result.outputs
    assert [*output.prompt_ids, *output.response_ids, *output.response_mask, *output.messages] == []
    assert output.turns
    batch = assemble([Group(uid="0-1", row=result.episode.row, results=[result], failures=[])])
    assert set(referred(batch)) == {"prompts", "responses", "multi_modal_data"}
    sampled = [
        token for answers in world.replicas[0].answers.values() for _, answer in answers for token in answer.token_ids
    ]
    values = resolve(batch).batch
    assert values.ragged("responses")[0][values.ragged("response_mask")[0] == 1].tolist() == sampled


class Ranks(RewardManager):
    """Gives each sample its place in the group."""

    scores_groups = True

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        raise NotImplementedError

    async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
        assert all(judged.solution_str for judged in group)
        return [RewardResult(score=float(place)) for place in range(len(group))]


async def test_a_group_is_judged_by_a_runner_whoever_played_it(template: ChatTemplate) -> None:
    world = World(template, Ranks(RewardSettings()))
    await world.pool.open()
    results = await asyncio.gather(*(world.play(sample) for sample in range(4)))
    assert not any(result.outputs for result in results)
    lost = results[1]
    assert isinstance(lost.to_judge, Block)
    lost.to_judge.store.drop([lost.to_judge.key])
    await world.pool.judge(results)
    await world.pool.close()
    assert [result.score for result in results] == [0.0, None, 1.0, 2.0]
    assert [result.failed for result in results] == [False, True, False, False]
    assert all(result.outputs and result.kept is not None for result in results if not result.failed)
    assert all(result.episode.row["raw_prompt"] == QUESTION and result.to_judge is None for result in results)


class Forgetful(MortalPlayer):
    """Loses a trajectory that it sent, as if it had been lost itself."""

    def __init__(self, player: MortalPlayer, sample: int) -> None:
        super().__init__(player._runner)
        self.sample = sample

    async def next_reply(self) -> Reply:
        reply = await super().next_reply()
        for result in (ended.outcome.value for ended in reply.opened() if isinstance(ended.outcome, Outcome)):
            if result.episode.sample == self.sample:
                drop_whole(result)
        return reply


def drop_whole(result: EpisodeResult) -> None:
    assert isinstance(result.to_judge, Block)
    result.to_judge.store.drop([result.to_judge.key])


def test_what_is_lost_before_it_is_judged_is_no_failure_and_its_group_is_judged_whole(template: ChatTemplate) -> None:
    world, thread = World(template, Ranks(RewardSettings())), LoopThread()
    world.pool = RunnerPool([Forgetful(player, sample=1) for player in world.players])
    thread.run(world.pool.open())
    with Rollouts(world.pool, world.router, RolloutsSettings(), thread=thread, judging=world.pool) as rollouts:
        rollouts.submit([{"uid": "0-1", "raw_prompt": QUESTION}], 4)
        (group,) = rollouts.next_groups(1)
        assert rollouts.excluded_fraction == 0.0
    thread.run(world.pool.close())
    thread.close()
    assert [(result.episode.sample, result.score) for result in group.results] == [(0, 0), (2, 1), (3, 2), (4, 3)]
    assert group.failures == []


async def test_what_is_lost_while_its_group_is_judged_is_left_out(template: ChatTemplate) -> None:
    class Late(MortalPlayer):
        tried = 0

        async def judge(self, wholes: Sequence[Block]) -> Parcel:
            self.tried += 1
            if self.tried == 1:
                drop_whole(results[2])
            return await super().judge(wholes)

    world = World(template, Ranks(RewardSettings()))
    player = Late(world.players[0]._runner)
    world.pool = RunnerPool([player])
    await world.pool.open()
    results = await asyncio.gather(*(world.play(sample) for sample in range(3)))
    await world.pool.judge(results)
    assert [(result.score, result.failed) for result in results] == [(0.0, False), (1.0, False), (None, True)]
    for result in results:
        result.to_judge = Block(MemoryColumnStore(), MemoryColumnStore().put([object_array([None])])[0])
        drop_whole(result)
    await world.pool.judge(results)
    assert player.tried == 2
    await world.pool.close()


async def test_groups_are_judged_by_all_runners(template: ChatTemplate) -> None:
    class Counting(MortalPlayer):
        judging = most = 0

        async def judge(self, wholes: Sequence[Block]) -> Parcel:
            self.judging += 1
            self.most = max(self.most, self.judging)
            await asyncio.sleep(0.05)
            self.judging -= 1
            return await super().judge(wholes)

    world = World(template, Ranks(RewardSettings()))
    players = [Counting(player._runner) for player in world.players]
    world.pool = RunnerPool(players)
    await world.pool.open()
    results = await asyncio.gather(*(world.play(sample) for sample in range(4)))
    await asyncio.gather(*(world.pool.judge([result]) for result in results))
    assert [player.most for player in players] == [2, 2]
    await world.pool.close()


async def test_a_lost_server_is_replaced_through_the_controller(world: World) -> None:
    world.replicas[0].lost = True
    results = await asyncio.gather(*(world.play(sample) for sample in range(4)))
    assert [result.failed for result in results] == [False] * 4
    assert {result.attempts for result in results} == {1}
    assert world.router.replicas == [cast(RolloutReplica, world.replicas[1])]
    assert world.router.total_held == 0


async def test_a_server_lost_in_the_middle_of_an_answer_costs_that_answer_alone(world: World) -> None:
    world.replicas[0].delay_seconds = 30.0
    play = asyncio.ensure_future(world.play(0))
    await world.replicas[0].started.wait()
    world.replicas[0].lost = True
    world.replicas[0].leaving.set()
    result = await play
    assert (result.failed, result.attempts) == (False, 1)
    assert len(world.replicas[1].answers) == 1
    assert world.router.total_held == 0


async def test_what_a_lost_runner_played_is_played_again_with_the_same_seeds(world: World) -> None:
    for replica in world.replicas:
        replica.delay_seconds = 0.1
    plays = [asyncio.ensure_future(world.play(sample)) for sample in range(4)]
    await world.until(lambda: sum(replica.running for replica in world.replicas) == 4)
    world.players[0].dead.set()
    results = await asyncio.gather(*plays)
    assert [result.failed for result in results] == [False] * 4
    assert sorted(world.players[1].begun) == [f"0-1/{sample}" for sample in range(4)]
    aborted = [event for replica in world.replicas for event in replica.events if event.startswith("abort")]
    assert sorted(aborted) == [f"abort {trajectory}" for trajectory in sorted(world.players[0].begun)]
    assert len({params["seed"] for replica in world.replicas for params in replica.params}) == 4
    assert world.pool.playing == [0]
    assert world.router.total_held == 0


async def test_what_a_lost_runner_played_fails_where_no_server_is_left_to_play_it_on(world: World) -> None:
    for replica in world.replicas:
        replica.delay_seconds = 30.0
    play = asyncio.ensure_future(world.play(0))
    await world.until(lambda: sum(replica.running for replica in world.replicas) == 1)
    for replica in world.replicas:
        replica.lost = True
        world.router.set_aside(cast(RolloutReplica, replica))
    world.players[0].dead.set()
    result = await play
    assert result.failure is not None
    assert (result.failure.boundary, result.episode.row["raw_prompt"]) == ("model", QUESTION)
    assert "no rollout server is in rotation" in result.failure.message
    assert world.router.total_held == 0


async def test_what_a_router_raises_is_raised_where_the_episode_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(self: LeastLoadedRouter, request_id: str, held: Any) -> RolloutReplica:
        raise KeyError("no such zone")

    world.replicas[0].delay_seconds = 30.0
    play = asyncio.ensure_future(world.play(0))
    await world.replicas[0].started.wait()
    monkeypatch.setattr(LeastLoadedRouter, "choose", choose)
    world.replicas[0].lost = True
    world.replicas[0].leaving.set()
    with pytest.raises(KeyError, match="no such zone"):
        await asyncio.wait_for(play, 10)
    await world.until(lambda: not world.players[0]._plays)


async def test_without_a_runner_the_run_stops(world: World) -> None:
    for player in world.players:
        player.dead.set()
    with pytest.raises(TrainingStoppedError, match="all 2 runners of episodes are lost"):
        await world.play(0)
    assert world.router.total_held == 0


async def test_another_runner_takes_the_place_of_a_lost_one(replacing: World) -> None:
    first = replacing.players[0]
    first.dead.set()
    await replacing.until(lambda: replacing.has_another_than(first))
    results = await asyncio.gather(*(replacing.play(sample) for sample in range(4)))
    assert [result.failed for result in results] == [False] * 4
    assert [len(player.begun) for player in replacing.players] == [2, 2]


async def test_episodes_wait_for_a_runner_where_all_are_lost_and_others_are_started(replacing: World) -> None:
    for replica in replacing.replicas:
        replica.delay_seconds = 0.1
    plays = [asyncio.ensure_future(replacing.play(sample)) for sample in range(4)]
    await replacing.until(lambda: sum(replica.running for replica in replacing.replicas) == 4)
    for player in replacing.players:
        player.dead.set()
    assert [result.failed for result in await asyncio.gather(*plays)] == [False] * 4
    assert replacing.router.total_held == 0


async def test_a_closed_gate_is_closed_for_a_new_runner_too(replacing: World) -> None:
    await replacing.play(0)
    replacing.gate.close()
    for player in list(replacing.players):
        player.dead.set()
    play = asyncio.ensure_future(replacing.play(1))
    await replacing.until(lambda: replacing.pool.playing in ([1, 0], [0, 1]))
    await asyncio.sleep(0.05)
    assert sum(sum(replica.requests.values()) for replica in replacing.replicas) == 1
    replacing.gate.open()
    assert not (await play).failed


async def test_a_runner_that_is_lost_again_and_again_stays_lost(replacing: World) -> None:
    for _ in range(2):
        lost = replacing.players[0]
        lost.dead.set()
        await replacing.until(partial(replacing.has_another_than, lost))
    replacing.players[0].dead.set()
    await replacing.until(lambda: len(replacing.pool.playing) == 1)
    await replacing.until(lambda: replacing.ended == [0])
    assert replacing.pool.playing == [0]
    assert not (await replacing.play(0)).failed


async def test_a_runner_that_does_not_start_is_tried_again(replacing: World) -> None:
    replacing.starts_that_fail = 1
    first = replacing.players[0]
    first.dead.set()
    await replacing.until(lambda: replacing.has_another_than(first))
    assert not (await replacing.play(0)).failed


async def test_without_a_runner_that_starts_the_run_stops(replacing: World) -> None:
    replacing.starts_that_fail = 4
    for player in replacing.players:
        player.dead.set()
    with pytest.raises(TrainingStoppedError, match="all 2 runners of episodes are lost"):
        await replacing.play(0)
    assert replacing.router.total_held == 0


async def test_cancelled_episodes_release_their_slots(world: World) -> None:
    for replica in world.replicas:
        replica.delay_seconds = 30.0
    plays = [asyncio.ensure_future(world.play(sample)) for sample in range(4)]
    await world.until(lambda: sum(replica.running for replica in world.replicas) == 4)
    for play in plays:
        play.cancel()
    await asyncio.gather(*plays, return_exceptions=True)
    assert world.pool.playing == [0, 0]
    assert world.router.total_held == 0
    await asyncio.sleep(0.05)
    assert sum(len(replica.aborted) for replica in world.replicas) == 4


async def test_a_closed_gate_holds_requests_of_all_runners_back(world: World) -> None:
    await world.play(0)
    world.gate.close()
    await asyncio.sleep(0.01)
    plays = [asyncio.ensure_future(world.play(sample)) for sample in (1, 2)]
    await asyncio.sleep(0.05)
    assert sum(sum(replica.requests.values()) for replica in world.replicas) == 1
    world.gate.open()
    assert [result.failed for result in await asyncio.gather(*plays)] == [False, False]


async def test_a_gate_that_was_closed_before_the_first_episode_holds_it_back(world: World) -> None:
    world.gate.close()
    play = asyncio.ensure_future(world.play(0))
    await asyncio.sleep(0.05)
    assert world.pool.playing == [1, 0]
    assert sum(sum(replica.requests.values()) for replica in world.replicas) == 0
    world.gate.open()
    assert not (await play).failed


async def test_a_worker_makes_its_runner_when_it_starts(template: ChatTemplate) -> None:
    world = World(template)
    workers = start_workers(
        "local", WorkerClass(RunnerWorker, (lambda rank: world.players[rank]._runner, MemoryColumnStore()))
    )
    await workers.start_player()
    world.pool = RunnerPool([workers.resident(0, "player")])
    await world.pool.open()
    assert not (await world.play(0)).failed
    await world.pool.close()
    await workers.stop_player()
    await workers.stop_player()


async def test_episodes_that_begin_together_are_sent_together(world: World) -> None:
    await asyncio.gather(*(world.play(sample) for sample in range(40)))
    assert [len(player.begun) for player in world.players] == [20, 20]
    assert all(player.letters <= 2 for player in world.players)


async def test_what_an_episode_raises_is_raised_where_it_is_waited_for(world: World) -> None:
    episode = Episode(uid="0-1", sample=0, row={"raw_prompt": QUESTION, "agent_name": "nobody"}, sampling_params={})
    lease = await world.router.lease(episode.trajectory_id)
    with pytest.raises(PluginError, match="nobody") as caught:
        await world.pool.run(episode, lease, world.gate)
    assert caught.value.__notes__ == ["raised on runner 0"]
    assert (await world.play(1)).failed is False


@given(count=st.integers(0, 200), cancelled=st.lists(st.integers(0, 9), max_size=3), is_open=st.booleans())
def test_a_letter_says_the_same_in_parts(count: int, cancelled: list[int], is_open: bool) -> None:
    episode = Episode(uid="0-1", sample=0, row={}, sampling_params={})
    orders = [Order(number, episode, cast(RolloutReplica, None)) for number in range(count)]
    parts = list(Letter(orders, cancelled, [], is_open).parts())
    assert [order for part in parts for order in part.orders] == orders
    assert max(len(part.orders) for part in parts) <= MOST_A_LETTER
    assert [number for part in parts for number in part.cancelled] == cancelled
    assert [part.gate_is_open for part in parts] == [is_open] + [None] * (len(parts) - 1)
    assert parts[-1].cancelled == cancelled
