"""Which launcher runs: the only place that knows."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agentverl.errors import BadInputError
from agentverl.protocol.column_store import ColumnStore, MemoryColumnStore
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.local import LocalWorkerGroup
from agentverl.single_controller.pools import PoolSpec, ResourcePool, ResourcePoolManager
from agentverl.single_controller.program import Program
from agentverl.single_controller.ray_cluster import RayInit, connect, cores, disconnect
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_errors import WorkerClassError
from agentverl.single_controller.worker_group import WorkerGroup

if TYPE_CHECKING:
    from agentverl.single_controller.ray_group import RayWorkerGroup

Result = TypeVar("Result")
_LAUNCHERS = ("local", "ray")
_MOST_BESIDE = 8


def run_program(
    launcher: str, program: Program[Result], init: RayInit, watch: AbstractContextManager[Callable[[], bool]]
) -> Result:
    """Run a controller: here, or in a process of its own that survives no longer than this one.

    Args:
        watch: entered while a controller runs elsewhere; where what it gives returns True, that one is interrupted.

    Raises:
        BadInputError: a launcher that does not exist.
        ResourceError: Ray cannot be reached or started.
    """
    _require_known(launcher)
    if launcher == "local":
        return program.run()
    from agentverl.single_controller.ray_program import run_in_ray  # Ray is optional

    started = connect(init)
    try:
        with watch as interrupted:  # Ray takes signals for itself when it starts
            return run_in_ray(program, interrupted)
    finally:
        if started:
            disconnect()


def start_workers(
    launcher: str,
    worker_class: WorkerClass,
    num_workers: int = 1,
    *,
    pool: ResourcePool | None = None,
    options: HostOptions | None = None,
    group_class: "type[RayWorkerGroup] | None" = None,
) -> WorkerGroup:
    """Start the workers of one role.

    Args:
        launcher: `trainer.launcher`; `local` runs them in this process.
        num_workers: without a pool, one is made of so many places on one machine.
        pool: places that may be shared with other roles.
        options: of their processes, where they have any.
        group_class: with `ray`, what is made in place of a RayWorkerGroup.

    Raises:
        BadInputError: a launcher that does not exist.
        WorkerClassError: a worker class that cannot work.
        ResourceError: places are missing.
        WorkerError: a worker that raised while it was made.
    """
    _require_known(launcher)
    if launcher == "local":
        return LocalWorkerGroup(worker_class, num_workers if pool is None else pool.world_size)
    from agentverl.single_controller.ray_group import RayWorkerGroup
    from agentverl.single_controller.ray_pools import RayResourcePool, UnreservedPool

    places = RayResourcePool([num_workers]) if pool is None else pool
    assert isinstance(places, RayResourcePool | UnreservedPool), "the pools of a Placement fit its launcher"
    return (group_class or RayWorkerGroup)(places, worker_class, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the workers of a run stand: its launcher, its pools, and which role has which.

    Args:
        pools: by name, see `PoolSpec`.
        roles: from each role to the name of its pool; with a single pool, all others have that one.
        options: of all processes; each role's are named after it.
        init: how Ray is reached.
        group_class: with `ray`, what is made in place of a RayWorkerGroup.
        use_gpu: whether a place has a GPU; None: where the cluster has any.
    """

    launcher: str = "local"
    pools: Mapping[str, PoolSpec] = field(default_factory=lambda: {"devices": [1]})
    roles: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    options: HostOptions = field(default_factory=HostOptions)
    init: RayInit = field(default_factory=RayInit)
    group_class: "type[RayWorkerGroup] | None" = None
    use_gpu: bool | None = None

    def open(self) -> "Places":
        """Reach what the workers shall stand on; nothing is reserved before they start.

        Raises:
            BadInputError: a launcher that does not exist, or roles that do not fit the pools.
            ResourceError: Ray cannot be reached.
        """
        _require_known(self.launcher)
        if self.launcher == "local":
            return Places(self, ResourcePoolManager(self.pools, self.roles), is_own=False)
        from agentverl.single_controller.ray_pools import RayResourcePool

        manager = ResourcePoolManager(self.pools, self.roles, partial(RayResourcePool, use_gpu=self.use_gpu))
        return Places(self, manager, is_own=connect(self.init))


class Places:
    """The pools of a run, on which its workers start; `close` gives them back."""

    def __init__(self, placement: Placement, manager: ResourcePoolManager, *, is_own: bool) -> None:
        self._placement = placement
        self.manager = manager
        self._is_own = is_own
        self._started: list[str] = []

    def reserve(self, role: str, *later: str) -> None:
        """Take what the workers of a role will stand on, before they start; see that there is room for the later roles.

        Raises:
            ResourceError: places or ports are missing, or a role has no pool.
        """
        for name in later:
            self.manager.get_resource_pool(name).require()
        self.manager.get_resource_pool(role).reserve(self._placement.options)

    def start(self, role: str, worker_class: WorkerClass, pool: ResourcePool | None = None) -> WorkerGroup:
        """Start the workers of a role on its pool, or the given one.

        Raises:
            WorkerClassError: the role has workers already.
        """
        if role in self._started:
            raise WorkerClassError(f"role {role} has workers already; started: {', '.join(self._started)}")
        placement = self._placement
        workers = start_workers(
            placement.launcher,
            worker_class,
            pool=self.manager.get_resource_pool(role) if pool is None else pool,
            options=replace(placement.options, name=role),
            group_class=placement.group_class,
        )
        self._started.append(role)
        return workers

    @property
    def in_one_process(self) -> bool:
        """Whether all workers live in the controller's own process."""
        return self._placement.launcher == "local"

    def start_beside(self, role: str, worker_class: WorkerClass, num_workers: int | None) -> WorkerGroup:
        """Start workers that mostly wait: on all machines by turns, on places of no pool.

        Args:
            num_workers: None: one a core of the cluster, at most 8.
        """
        from agentverl.single_controller.ray_pools import UnreservedPool

        count = num_workers or (1 if self.in_one_process else min(_MOST_BESIDE, cores()))
        return self.start(role, worker_class, UnreservedPool([count], use_gpu=False, name_prefix=role))

    def column_store(self) -> ColumnStore:
        """Where columns are put that pass the controller by."""
        if self.in_one_process:
            return MemoryColumnStore()
        from agentverl.protocol.ray_column_store import RayColumnStore

        return RayColumnStore()

    def close(self) -> None:
        """Give the pools back; the workers on them end first."""
        self.manager.release()
        if self._is_own:
            disconnect()


def _require_known(launcher: str) -> None:
    if launcher not in _LAUNCHERS:
        raise BadInputError(f"trainer.launcher={launcher!r} does not exist; known: {', '.join(_LAUNCHERS)}")
