"""Which role stands in which pool, and what is refused."""

from enum import Enum, auto

import pytest

from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.launcher import Placement
from agentverl.single_controller.pools import PoolSpec, ResourcePool, ResourcePoolManager
from agentverl.single_controller.worker import Worker, WorkerClass
from agentverl.single_controller.worker_errors import ResourceError, WorkerClassError


class Role(Enum):
    """As verl names roles."""

    Actor = auto()
    Critic = auto()


def test_pools_are_given_as_numbers_lists_or_devices() -> None:
    manager = ResourcePoolManager(resource_pool_spec={"a": [4, 4], "b": 2, "c": {"gpu": 1}})
    assert [manager.get_resource_pool(name).world_size for name in "abc"] == [8, 2, 1]
    assert manager.get_n_gpus() == 11
    manager.release()


def test_roles_are_mapped_by_name_or_by_enumeration() -> None:
    manager = ResourcePoolManager({"large": [4], "small": [1]}, {Role.Actor: "large", Role.Critic: "small"})
    assert manager.get_resource_pool(Role.Critic).world_size == 1
    assert manager.get_resource_pool("Actor").world_size == 4
    with pytest.raises(ResourceError, match="role reward is mapped to no pool; mapped are Actor, Critic"):
        manager.get_resource_pool("reward")


def test_a_single_pool_holds_every_role() -> None:
    assert ResourcePoolManager({"only": [2]}, {}).get_resource_pool("anything").world_size == 2


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"actor": "larg"}, "mapped to the pool 'larg', which does not exist; pools: large, small"),
        ([("actor", "large"), ("actor", "small")], "role actor is mapped twice, to 'large' and 'small'"),
        ({"actor": ["large", "small"]}, "role actor is mapped twice, to 'large' and 'small'"),
    ],
)
def test_mappings_that_cannot_work_are_refused(mapping: object, message: str) -> None:
    with pytest.raises(ResourceError, match=message):
        ResourcePoolManager({"large": [4], "small": [1]}, mapping)  # type: ignore[arg-type]


def test_pools_that_cannot_work_are_refused() -> None:
    with pytest.raises(ResourceError, match="every number must be at least 1"):
        ResourcePool([4, 0])
    with pytest.raises(ResourceError, match="expected \\[places on each node\\] or gpu: 4"):
        ResourcePoolManager({"a": {"tpu": 4}})
    specs: list[PoolSpec] = [[-1], [4, 0], [], 0, {"gpu": 0}]
    for spec in specs:
        with pytest.raises(ResourceError, match=r"pool 'large': got .*; expected at least 1 place on each node"):
            ResourcePoolManager({"large": spec})


class Plain(Worker):
    """Has one method."""

    @register(Dispatch.ONE_TO_ALL)
    def number(self) -> int:
        return self.rank


def test_each_role_starts_once_on_its_places() -> None:
    places = Placement(pools={"large": [2], "small": [1]}, roles={"actor": "large", "critic": "small"}).open()
    assert places.start("actor", WorkerClass(Plain)).number() == [0, 1]
    assert places.start("critic", WorkerClass(Plain)).number() == [0]
    with pytest.raises(WorkerClassError, match="role critic has workers already; started: actor, critic"):
        places.start("critic", WorkerClass(Plain))
    places.close()
