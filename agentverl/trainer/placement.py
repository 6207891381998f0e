"""Where the workers of a run stand, by its settings."""

from pathlib import Path
from typing import TYPE_CHECKING

from agentverl.settings.root import Settings
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.launcher import Placement
from agentverl.single_controller.pools import PoolSpec, ResourcePoolManager
from agentverl.single_controller.ray_cluster import RayInit

if TYPE_CHECKING:
    from agentverl.single_controller.ray_group import RayWorkerGroup


def placement_of(
    settings: Settings,
    logs: Path,
    pools: ResourcePoolManager | None = None,
    group_class: "type[RayWorkerGroup] | None" = None,
) -> Placement:
    """One pool of `nnodes` times `n_gpus_per_node` places, which all roles share; or what is given.

    With `rollout.nnodes`, rollout servers have a pool of their own.

    Args:
        logs: a folder that takes the log of each process.
    """
    trainer = settings.trainer
    own: dict[str, PoolSpec] = {"devices": [trainer.n_gpus_per_node] * trainer.nnodes}
    roles: dict[str, str] = {}
    rollout = settings.actor_rollout_ref.rollout
    if rollout.nnodes:
        own["rollout"] = [rollout.n_gpus_per_node or trainer.n_gpus_per_node] * rollout.nnodes
        roles = {"actor_rollout_ref": "devices", "critic": "devices", "rollout": "rollout"}
    return Placement(
        launcher=trainer.launcher,
        pools=own if pools is None else pools.resource_pool_spec,
        roles=roles if pools is None else pools.mapping,
        group_class=group_class,
        use_gpu=None if trainer.device == "auto" else trainer.device == "cuda",
        options=HostOptions(
            logs=logs, ports=trainer.master_port_range, start_seconds=trainer.ray_wait_register_center_timeout
        ),
        init=ray_init(settings),
    )


def ray_init(settings: Settings) -> RayInit:
    """How Ray is reached, by the section `ray_kwargs`."""
    return RayInit(**settings.ray_kwargs.ray_init.model_dump())
