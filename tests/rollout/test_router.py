"""Leases: chosen once, counted, moved when a server fails, always given back."""

import asyncio
from typing import cast

import pytest

from agentverl.data.chat_template import ChatTemplate
from agentverl.errors import InfrastructureError
from agentverl.rollout.client import Gate, TrajectoryClient
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.router import LeastLoadedRouter
from tests.rollout.fake_replica import FakeReplica

PARAMS = {"seed": 1, "max_tokens": 3, "stop_token_ids": [258]}


@pytest.fixture
def replicas(template: ChatTemplate) -> list[FakeReplica]:
    return [FakeReplica(template, lambda turn, chance: "hello") for _ in range(2)]


@pytest.fixture
def router(replicas: list[FakeReplica]) -> LeastLoadedRouter:
    return LeastLoadedRouter([cast(RolloutReplica, replica) for replica in replicas])


async def test_trajectories_go_where_the_fewest_are(router: LeastLoadedRouter, replicas: list[FakeReplica]) -> None:
    leases = [await router.lease(str(number)) for number in range(4)]
    assert [list(router.held).index(lease.replica) for lease in leases] == [0, 1, 0, 1]
    await leases[1].close()
    await leases[1].close()
    assert (await router.lease("5")).replica is leases[1].replica
    assert sorted(router.held.values()) == [2, 2]


async def test_a_failed_server_is_left_for_another(router: LeastLoadedRouter, replicas: list[FakeReplica]) -> None:
    lease = await router.lease("a")
    await lease.renew()
    assert lease.replica is router.replicas[1]
    assert replicas[0].events == ["open a", "close a"]
    router.remove(router.replicas[0])
    await lease.renew()
    assert lease.replica is router.replicas[0]
    assert replicas[1].events == ["open a"]


async def test_without_a_server_there_is_no_lease(router: LeastLoadedRouter) -> None:
    for replica in router.replicas:
        router.remove(replica)
    with pytest.raises(InfrastructureError, match="no rollout server"):
        await router.lease("a")
    assert router.weight_version == -1


async def test_sub_agents_are_leased_beside_their_parent(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    lease = await router.lease("a")
    client = TrajectoryClient(lease)
    for _ in range(2):
        await client.generate("a/critic", prompt_ids=[1], sampling_params=PARAMS)
    await lease.close()
    assert replicas[0].events[:2] == ["open a", "open a/critic"]
    assert sorted(replicas[0].closed) == ["a", "a/critic"]


async def test_in_rounds_they_share_the_lease_of_the_trajectory(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    client = TrajectoryClient(await router.lease("a"), one_request_at_a_time=True)
    await client.generate("a/critic", prompt_ids=[1], sampling_params=PARAMS)
    assert set(replicas[0].requests) == {"a"}


async def test_a_server_that_does_not_answer_is_an_infrastructure_failure(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    replicas[0].delay_seconds = 30.0
    client = TrajectoryClient(await router.lease("a"), timeout_seconds=0.01)
    with pytest.raises(InfrastructureError, match=r"no answer within 0\.01 seconds"):
        await client.generate("a", prompt_ids=[1], sampling_params=PARAMS)
    assert replicas[0].aborted == ["a"]
    assert client.record == []


async def test_waiting_at_the_gate_counts_for_no_deadline(router: LeastLoadedRouter) -> None:
    gate = Gate()
    queued: list[float] = []
    gate.close()
    client = TrajectoryClient(await router.lease("a"), gate=gate, on_queued=queued.append)
    task = asyncio.ensure_future(client.generate("a", prompt_ids=[1], sampling_params=PARAMS))
    await asyncio.sleep(0.02)
    assert not task.done()
    gate.open()
    await task
    assert queued
    assert 0.01 < queued[0] < 5


async def test_a_killed_server_is_out_of_rotation_and_its_request_goes_on_elsewhere(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    replicas[0].delay_seconds = 30.0
    lease = await router.lease("a")
    client = TrajectoryClient(lease)
    request = asyncio.ensure_future(client.generate("a", prompt_ids=[1], sampling_params=PARAMS))
    await replicas[0].started.wait()
    replicas[0].lost = True
    replicas[0].leaving.set()
    output = await request
    assert [sampled.token_ids for sampled in client.record] == [output.token_ids]
    assert [list(prompt) for prompt, _ in replicas[1].answers["a"]] == [[1]]
    assert router.held == {lease.replica: 1}
    assert router.known[1] is cast(RolloutReplica, replicas[0])
    await lease.close()
    assert router.total_held == 0


async def test_a_killed_server_costs_one_piece_of_a_long_answer(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    lease = await router.lease("a")
    client = TrajectoryClient(lease, most_tokens=2)
    replicas[0].fails = lambda request_id, turn: InfrastructureError("its process died", "model") if turn else None
    output = await client.generate("a", prompt_ids=[1], sampling_params={**PARAMS, "max_tokens": 5})
    (_, first), (prompt, second) = replicas[0].answers["a"][0], replicas[1].answers["a"][0]
    assert prompt == [1, *first.token_ids]
    assert output.token_ids[:4] == [*first.token_ids, *second.token_ids]
    assert [params["max_tokens"] for params in replicas[1].params] == [2, 1]
    assert len(output.token_ids) == 5
    assert client.record[0].token_ids == output.token_ids


async def test_sub_agents_that_find_a_server_lost_move_once(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    lease = await router.lease("a")
    replicas[0].lost = True
    client = TrajectoryClient(lease)
    names = ["a", "a/1", "a/2"]
    await asyncio.gather(*(client.generate(name, prompt_ids=[1], sampling_params=PARAMS) for name in names))
    assert sorted(replicas[1].answers) == names
    assert router.total_held == 1


async def test_what_a_leaving_server_gives_back_is_continued_elsewhere(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    replicas[0].delay_seconds = 30.0
    replicas[1].weight_version = 7
    lease = await router.lease("a")
    client = TrajectoryClient(lease)
    params = {"seed": 1, "max_tokens": 5, "stop_token_ids": [258]}
    request = asyncio.ensure_future(client.generate("a", prompt_ids=[1], sampling_params=params))
    await replicas[0].started.wait()
    await router.leave(lease.replica)
    output = await request
    (_, first), (prompt, second) = replicas[0].answers["a"][0], replicas[1].answers["a"][0]
    assert len(first.token_ids) == 2
    assert prompt == [1, *first.token_ids]
    assert output.token_ids == [*first.token_ids, *second.token_ids]
    assert output.log_probs == [*(first.log_probs or ()), *(second.log_probs or ())]
    assert output.weight_versions == [(2, 0), (5, 7)]
    assert replicas[1].params[0]["max_tokens"] == 3
    assert replicas[1].params[0]["seed"] != 1
    assert client.record[0].token_ids == output.token_ids
    await lease.close()
    assert router.total_held == 0
    assert sorted(replicas[0].closed + replicas[1].closed) == ["a", "a"]


async def test_a_server_that_is_well_again_comes_back(router: LeastLoadedRouter, replicas: list[FakeReplica]) -> None:
    lease = await router.lease("a")
    replicas[0].lost = True
    await lease.renew()
    assert len(router.replicas) == 1
    replicas[0].lost = False
    for replica in router.known:
        assert await router.check(replica)
    assert len(router.replicas) == 2
    assert sorted(router.held.values()) == [0, 1]


async def test_a_lease_on_a_dead_server_is_one_on_another(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    replicas[0].lost = True
    lease = await router.lease("a")
    assert replicas[1].opened == ["a"]
    await lease.close()
    replicas[1].lost = True
    with pytest.raises(InfrastructureError, match="no rollout server"):
        await router.lease("b")
    assert router.total_held == 0


async def test_a_trajectory_that_is_played_again_begins_on_a_clean_server(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    lease = await router.lease("a")
    await lease.open_more("a/critic")
    await lease.begin_again()
    assert replicas[0].events[2:] == ["abort a", "close a", "abort a/critic", "close a/critic", "open a"]
    replicas[0].lost = True
    await lease.begin_again()
    assert replicas[1].opened == ["a"]
    await lease.close()
    assert router.total_held == 0


async def test_servers_are_not_asked_for_the_weights_that_all_were_given(
    router: LeastLoadedRouter, replicas: list[FakeReplica]
) -> None:
    replicas[0].weight_version = 3
    assert router.weight_version == 0
    router.require_version(4)
    assert router.weight_version == 4
