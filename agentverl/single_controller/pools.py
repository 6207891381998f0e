"""Which role gets which devices: pools of places, and the roles that share them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.worker_errors import ResourceError

PoolSpec = int | Sequence[int] | Mapping[str, int]
"""Places on each node, `[4, 4]`; or on one node, `4`, `{"gpu": 4}` or `{"cpu": 4}`."""


class ResourcePool:
    """Places for workers on some nodes.

    Args:
        process_on_nodes: workers on each node.
        use_gpu: whether each place has a GPU; None: where the machine has any.
        max_colocate_count: how many groups may stand on these places at once.
        name_prefix: names the pool in Ray's dashboard and in errors.
        detached: the places outlive the program that made them.

    Raises:
        ResourceError: a node with no place, or none at all.
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int],
        use_gpu: bool | None = None,
        max_colocate_count: int = 10,
        name_prefix: str = "pool",
        detached: bool = False,
    ) -> None:
        if not process_on_nodes or min(process_on_nodes) < 1 or max_colocate_count < 1:
            raise ResourceError(
                f"resource pool {name_prefix!r}: process_on_nodes={list(process_on_nodes)}, "
                f"max_colocate_count={max_colocate_count}; every number must be at least 1, such as [4, 4] and 1"
            )
        self.store = list(process_on_nodes)
        self.use_gpu = use_gpu
        self.max_colocate_count = max_colocate_count
        self.name_prefix = name_prefix
        self.detached = detached

    @property
    def world_size(self) -> int:
        """Places in all."""
        return sum(self.store)

    def require(self) -> None:
        """Check that the places exist, whoever holds them now.

        Raises:
            ResourceError: they do not.
        """

    def reserve(self, options: HostOptions) -> None:
        """Take the places, where others could; workers that start on them later find what the options ask for.

        Raises:
            ResourceError: places or ports are missing.
        """

    def release(self) -> None:
        """Give the places back, where they were reserved; may be called twice."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name_prefix}: {self.store})"


class ResourcePoolManager:
    """The pools of a run, and which role stands in which.

    Args:
        resource_pool_spec: pools by name.
        mapping: from roles to the names of their pools, as a dict or as pairs. None: each pool is named after its role.
            With a single pool, roles that it does not name stand there.
        pool_class: what a pool is made with.

    Raises:
        ResourceError: a pool with a node without places, or a role with a pool that does not exist, or mapped twice.
    """

    def __init__(
        self,
        resource_pool_spec: Mapping[str, PoolSpec],
        mapping: Mapping[Any, str] | Iterable[tuple[Any, str]] | None = None,
        pool_class: Callable[..., ResourcePool] = ResourcePool,
    ) -> None:
        self.resource_pool_spec = {name: _places(name, spec) for name, spec in resource_pool_spec.items()}
        pairs = mapping.items() if isinstance(mapping, Mapping) else mapping
        self.mapping = _by_role([(name, name) for name in resource_pool_spec] if pairs is None else pairs)
        for role, pool in self.mapping.items():
            if pool not in self.resource_pool_spec:
                raise ResourceError(
                    f"role {role} is mapped to the pool {pool!r}, which does not exist; "
                    f"pools: {', '.join(self.resource_pool_spec) or 'none'}"
                )
        self._pool_class = pool_class
        self.resource_pool_dict: dict[str, ResourcePool] = {}

    def create_resource_pool(self) -> None:
        """Make the pools; nothing is reserved before workers start."""
        for name, places in self.resource_pool_spec.items():
            if name not in self.resource_pool_dict:
                self.resource_pool_dict[name] = self._pool_class(places, name_prefix=name)

    def get_resource_pool(self, role: Any) -> ResourcePool:
        """The pool of a role.

        Raises:
            ResourceError: the role is mapped to none, and there are several.
        """
        only = next(iter(self.resource_pool_spec)) if len(self.resource_pool_spec) == 1 else None
        name = self.mapping.get(_role_name(role), only)
        if name is None:
            raise ResourceError(
                f"role {_role_name(role)} is mapped to no pool; mapped are {', '.join(self.mapping) or 'none'}"
            )
        self.create_resource_pool()
        return self.resource_pool_dict[name]

    def release(self) -> None:
        """Give the places of all pools back."""
        for pool in self.resource_pool_dict.values():
            pool.release()

    def get_n_gpus(self) -> int:
        """Places of all pools; of GPUs one each."""
        return sum(sum(places) for places in self.resource_pool_spec.values())


def _role_name(role: Any) -> str:
    """The name of a role, which may be a member of an enumeration."""
    return str(getattr(role, "name", role))


def _by_role(pairs: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for role, pool in pairs:
        name = _role_name(role)
        pools = [pool] if isinstance(pool, str) else list(pool)
        if name in mapping or len(pools) != 1:
            also = [mapping[name]] if name in mapping else []
            raise ResourceError(
                f"role {name} is mapped twice, to {' and '.join(map(repr, [*also, *pools]))}; a role stands in one pool"
            )
        mapping[name] = pools[0]
    return mapping


def _places(name: str, spec: PoolSpec) -> list[int]:
    if isinstance(spec, Mapping):
        if set(spec) not in ({"gpu"}, {"cpu"}):
            raise ResourceError(f"resource pool {name!r}: got {dict(spec)}; expected [places on each node] or gpu: 4")
        spec = next(iter(spec.values()))
    places = [spec] if isinstance(spec, int) else list(spec)
    if not places or min(places) < 1:
        raise ResourceError(
            f"resource pool {name!r}: got {places}; expected at least 1 place on each node, as in [4, 4]"
        )
    return places
