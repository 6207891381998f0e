"""Where the workers of a run stand, by its settings."""

from pathlib import Path
from typing import TYPE_CHECKING

from agentverl.settings.root import Settings
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.launcher import Placement
from agentverl.single_controller.pools import ResourcePoolManager
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

    Args:
        logs: a folder that takes the log of each process.
    """
    trainer = settings.trainer
    shared = {"devices": [trainer.n_gpus_per_node] * trainer.nnodes}
    return Placement(
        launcher=trainer.launcher,
        pools=shared if pools is None else pools.resource_pool_spec,
        roles={} if pools is None else pools.mapping,
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
