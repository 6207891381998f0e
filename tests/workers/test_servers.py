"""Servers in processes of their own: who gets the weights, who leaves rotation, who is asked again."""

import asyncio
from typing import Any, cast

import pytest

from agentverl.checkpoint_engine.seats import Seat
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError
from agentverl.errors import BadInputError, TrainingStoppedError
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.single_controller.worker_errors import WorkerError
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.workers.servers import StandaloneServers
from tests.agent_loops.scripted import byte_tokenizer
from tests.rollout.fake_replica import FakeReplica


class FakeGroups:
    """Stands for both worker groups: a transfer fails where a server is lost or told to refuse."""

    def __init__(self, count: int) -> None:
        self.replicas = [self._replica() for _ in range(count)]
        self.world_size = count
        self.refusing: dict[int, Exception] = {}
        self.sent: list[Seat] = []
        self.addresses = 0
        self.restarted: list[int] = []
        self.ended: list[int] = []
        self.cannot_start = False

    async def start_replica(self) -> None:
        pass

    def resident(self, rank: int, name: str) -> FakeReplica:
        return self.replicas[rank]

    async def weights_address(self) -> str:
        self.addresses += 1
        return f"here:{self.addresses}"

    async def send_weights(self, seat: Seat, version: int) -> list[None]:
        self.sent.append(seat)
        await asyncio.sleep(0)
        if self.refusing:
            raise WeightTransferError("did not arrive completely")
        return [None]

    def restart(self, rank: int) -> None:
        if self.cannot_start:
            raise WorkerError("no room", rank, "")
        self.restarted.append(rank)
        self.replicas[rank] = self._replica()

    def end_rank(self, rank: int) -> None:
        self.ended.append(rank)

    def _replica(self) -> FakeReplica:
        return FakeReplica(cast(Any, byte_tokenizer()), lambda turn, chance: "", -1)

    async def run_async(self, rank: int, method: str, arguments: Any) -> None:
        if method == "start_replica":
            return
        (seat, version), _ = arguments
        assert seat.bucket_bytes == 2**20
        assert (method, seat.address) == ("receive_weights", self.sent[-1].address if self.sent else "here:1")
        if rank in self.refusing:
            raise self.refusing[rank]
        self.replicas[rank].weight_version = version


async def started(count: int = 3) -> tuple[FakeGroups, StandaloneServers, LeastLoadedRouter]:
    groups = FakeGroups(count)
    servers = StandaloneServers(cast(WorkerGroup, groups), cast(WorkerGroup, groups), bucket_bytes=2**20)
    return groups, servers, LeastLoadedRouter(await servers.start())


async def test_all_servers_get_the_weights_over_one_connection() -> None:
    groups, servers, router = await started()
    for version in range(3):
        await servers.update_weights(version, router)
    assert [replica.weight_version for replica in groups.replicas] == [2, 2, 2]
    assert {(seat.rank, seat.size, seat.address, seat.bucket_bytes) for seat in groups.sent} == {
        (0, 4, "here:1", 2**20)
    }


async def test_those_that_are_left_meet_anew_without_a_lost_one() -> None:
    groups, servers, router = await started()
    await servers.update_weights(0, router)
    groups.replicas[1].lost = True
    await servers.update_weights(1, router)
    assert (groups.sent[-1].size, groups.sent[-1].address) == (3, "here:2")
    assert router.replicas == [cast(RolloutReplica, groups.replicas[rank]) for rank in (0, 2)]


async def test_a_server_without_the_complete_set_is_out_of_rotation_until_the_next_one_is_in() -> None:
    groups, servers, router = await started()
    await servers.update_weights(0, router)
    groups.refusing = {2: WeightTransferError("broke off")}
    await servers.update_weights(1, router)
    late = cast(RolloutReplica, groups.replicas[2])
    assert late not in router.replicas
    await router.check(late)
    assert late not in router.replicas
    groups.refusing = {}
    await servers.update_weights(2, router)
    assert late in router.replicas
    assert groups.sent[-1].size == 4


async def test_weights_that_do_not_fit_are_bad_input() -> None:
    groups, servers, router = await started()
    groups.refusing = {0: BadInputError("shapes differ")}
    with pytest.raises(BadInputError, match="shapes differ"):
        await servers.update_weights(0, router)


async def test_a_lost_server_is_started_again_and_back_with_the_next_weights() -> None:
    groups, servers, router = await started()
    await servers.update_weights(0, router)
    groups.replicas[1].lost = True
    await servers.update_weights(1, router)
    await asyncio.gather(*servers._restarting.values())
    assert groups.restarted == [1]
    fresh = cast(RolloutReplica, groups.replicas[1])
    await router.check(fresh)
    assert fresh not in router.replicas
    await servers.update_weights(2, router)
    assert set(router.replicas) == {cast(RolloutReplica, replica) for replica in groups.replicas}
    assert [replica.weight_version for replica in groups.replicas] == [2, 2, 2]
    assert groups.sent[-1].size == 4


async def test_weights_wait_for_a_server_where_all_are_lost() -> None:
    groups, servers, router = await started(1)
    await servers.update_weights(0, router)
    groups.replicas[0].lost = True
    await servers.update_weights(1, router)
    assert router.replicas == [cast(RolloutReplica, groups.replicas[0])]
    assert groups.replicas[0].weight_version == 1


async def test_a_server_is_started_again_twice_and_no_more() -> None:
    groups, servers, router = await started(1)
    for version in range(2):
        groups.replicas[0].lost = True
        await servers.update_weights(version, router)
    groups.replicas[0].lost = True
    with pytest.raises(TrainingStoppedError, match="none of the 1 rollout servers"):
        await servers.update_weights(2, router)
    assert (groups.restarted, groups.ended) == ([0, 0], [0])


async def test_losses_of_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentverl.rollout.loss_history.WITHIN_SECONDS", 0.0)
    groups, servers, router = await started(1)
    for version in range(5):
        groups.replicas[0].lost = True
        await servers.update_weights(version, router)
    assert groups.restarted == [0] * 5


async def test_without_a_server_the_run_stops() -> None:
    groups, servers, router = await started(2)
    groups.cannot_start = True
    for replica in groups.replicas:
        replica.lost = True
    with pytest.raises(TrainingStoppedError, match="none of the 2 rollout servers"):
        await servers.update_weights(0, router)
