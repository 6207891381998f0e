"""Where the workers of a run stand, by its settings."""

from pathlib import Path

from agentverl.settings.root import Settings
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.launcher import Placement
from agentverl.single_controller.ray_cluster import RayInit


def placement_of(settings: Settings, logs: Path) -> Placement:
    """One pool of `nnodes` times `n_gpus_per_node` places, which all roles share.

    Args:
        logs: a folder that takes the log of each process.
    """
    trainer = settings.trainer
    return Placement(
        launcher=trainer.launcher,
        pools={"devices": [trainer.n_gpus_per_node] * trainer.nnodes},
        options=HostOptions(
            logs=logs, ports=trainer.master_port_range, start_seconds=trainer.ray_wait_register_center_timeout
        ),
        init=ray_init(settings),
    )


def ray_init(settings: Settings) -> RayInit:
    """How Ray is reached, by the section `ray_kwargs`."""
    return RayInit(**settings.ray_kwargs.ray_init.model_dump())
