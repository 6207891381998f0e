"""Pools of places in a Ray cluster: one placement group a node, one bundle a place."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from agentverl.single_controller import ray_cluster
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.pools import ResourcePool
from agentverl.single_controller.ports import address_here, taken
from agentverl.single_controller.worker_errors import ResourceError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

logger = logging.getLogger(__name__)

_NOTICE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one worker of each group that shares the pool."""

    group: "PlacementGroup"
    bundle: int
    local_rank: int
    local_world_size: int

    @property
    def is_there(self) -> bool:
        """Whether its machine still is."""
        from ray.util import placement_group_table

        return bool(placement_group_table(self.group)["state"] == "CREATED")

    def scheduling(self, share: float) -> dict[str, Any]:
        """Ray's options of a process on this place, of which it takes a share."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {"num_cpus": share, "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, self.bundle)}


@dataclass(frozen=True, slots=True)
class UnreservedSlot:
    """A place on a machine, for a process that mostly waits."""

    node_id: str
    local_rank: int
    local_world_size: int
    is_there = True

    def scheduling(self, share: float) -> dict[str, Any]:
        """Ray's options of a process there; elsewhere if the machine is gone."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(self.node_id, soft=True)}


class UnreservedPool(ResourcePool):
    """So many places on the machines of the cluster by turns, of which nothing is reserved."""

    has_gpus = False

    def slots(self, timeout_seconds: float = 300.0) -> list[UnreservedSlot]:
        """The places."""
        import ray

        nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
        size = self.world_size
        return [
            UnreservedSlot(nodes[place % len(nodes)], place // len(nodes), size // len(nodes) + 1)
            for place in range(size)
        ]


class RayResourcePool(ResourcePool):
    """Places that are reserved when the first worker group starts on them; `release` gives them back."""

    _slots: list[Slot] | None = None
    _is_share = False

    def slots(self, timeout_seconds: float = 300.0) -> list[Slot]:
        """The places, node by node; reserved at the first call.

        Raises:
            ResourceError: the cluster does not have them, or others hold them for longer than `timeout_seconds`.
        """
        if self._slots is None:
            self._slots = self._reserve(timeout_seconds)
        return self._slots

    def require(self) -> None:
        ray_cluster.require(self._what, [(places, self._bundle) for places in self.store])

    def reserve(self, options: HostOptions) -> None:
        slots = self.slots(options.start_seconds)
        if options.ports is None:
            return
        import ray

        # Where the first rank will stand, and before it does: its process would begin to write into the run's folder.
        asking = ray.remote(address_here).options(**slots[0].scheduling(1 / self.max_colocate_count))
        answered, _ = ray.wait([asking.remote(options.ports)], timeout=options.start_seconds)
        for address, port in ray.get(answered):
            if port is None:
                raise taken(options.ports, address)

    @property
    def has_gpus(self) -> bool:
        """Whether each place has a GPU."""
        if self.use_gpu is None:
            self.use_gpu = ray_cluster.has_gpus()
        return self.use_gpu

    @property
    def _what(self) -> str:
        return f"resource pool {self.name_prefix!r}"

    @property
    def _bundle(self) -> ray_cluster.Need:
        """What a place takes."""
        return {"CPU": 1.0} | ({"GPU": 1.0} if self.has_gpus else {})

    def release(self) -> None:
        """Give the places back; may be called twice. A detached pool, or part of another one, stays reserved."""
        slots, self._slots = self._slots or [], None
        if not self.detached and not self._is_share:
            _remove({id(slot.group): slot.group for slot in slots}.values())

    def _reserve(self, timeout_seconds: float) -> list[Slot]:
        from ray.util.placement_group import placement_group

        self.require()
        what = self._what
        groups = [
            placement_group(
                [self._bundle for _ in range(places)],
                strategy="STRICT_PACK",
                # Ray refuses a second name of a kind, and runs that share a cluster may name their pools alike.
                name=f"{self.name_prefix}-node{node}-{uuid4().hex[:6]}",
                lifetime="detached" if self.detached else None,
            )
            for node, places in enumerate(self.store)
        ]
        for group in groups:
            if not group.wait(min(_NOTICE_SECONDS, timeout_seconds)):
                logger.warning("%s waits for places; %s", what, ray_cluster.inventory())
                if not group.wait(timeout_seconds):
                    _remove(groups)
                    raise ResourceError(
                        f"{what}: others hold what it needs, and did not give it back within {timeout_seconds:g} "
                        f"seconds (trainer.ray_wait_register_center_timeout); {ray_cluster.inventory()}"
                    )
        machines = _machines(groups)
        if machines < len(groups):
            logger.warning(
                "%s: its %d nodes stand on %d machine(s), which had room; lower trainer.nnodes, or add machines",
                what,
                len(groups),
                machines,
            )
        return [
            Slot(group, bundle, local_rank=bundle, local_world_size=places)
            for group, places in zip(groups, self.store, strict=True)
            for bundle in range(places)
        ]


PlacePool = RayResourcePool | UnreservedPool


def split_resource_pool(pool: RayResourcePool, split_size: int | Sequence[int]) -> list[RayResourcePool]:
    """The places of a pool in several, of a size each or of the given sizes; the pool itself stays theirs.

    Raises:
        ResourceError: the sizes do not add up to the places of the pool.
    """
    places = pool.world_size
    sizes = [split_size] * (places // max(split_size, 1)) if isinstance(split_size, int) else list(split_size)
    if sum(sizes) != places or min(sizes, default=0) < 1:
        raise ResourceError(
            f"{pool} has {places} places, which cannot be split into {split_size}; expected sizes of at least 1 that "
            f"add up to {places}, or one size that divides it"
        )
    slots, shares = pool.slots(), []
    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        shares.append(_share(f"{pool.name_prefix}-part{number}", [pool], slots[start : start + size]))
    return shares


def merge_resource_pool(*pools: RayResourcePool) -> RayResourcePool:
    """One pool with the places of all, which stay theirs."""
    slots = [slot for pool in pools for slot in pool.slots()]
    return _share("+".join(pool.name_prefix for pool in pools), pools, slots)


def _share(name: str, pools: Sequence[RayResourcePool], slots: list[Slot]) -> RayResourcePool:
    by_node: dict[int, list[Slot]] = {}
    for slot in slots:
        by_node.setdefault(id(slot.group), []).append(slot)
    share = RayResourcePool(
        [len(node) for node in by_node.values()],
        use_gpu=pools[0].has_gpus,
        max_colocate_count=min(pool.max_colocate_count for pool in pools),
        name_prefix=name,
        detached=any(pool.detached for pool in pools),
    )
    share._slots = [
        Slot(slot.group, slot.bundle, local_rank=number, local_world_size=len(node))
        for node in by_node.values()
        for number, slot in enumerate(node)
    ]
    share._is_share = True
    return share


def _machines(groups: "Sequence[PlacementGroup]") -> int:
    """On how many machines some groups stand."""
    from ray.util import placement_group_table

    return len({node for group in groups for node in placement_group_table(group)["bundles_to_node_id"].values()})


def _remove(groups: Any) -> None:
    import ray
    from ray.util.placement_group import remove_placement_group

    if ray.is_initialized():
        for group in groups:
            remove_placement_group(group)
