"""`ray_kwargs.*`: how Ray is reached or started, with `trainer.launcher=ray`."""

from typing import Any

from pydantic import Field

from agentverl.settings.section import Name, Section


class RayInitSettings(Section):
    """What `ray.init` is told."""

    address: Name | None = None
    """A running cluster; null means RAY_ADDRESS, or else Ray is started on this machine for this run alone."""
    num_cpus: int | None = Field(None, gt=0)
    """CPUs that a Ray of this run's own has to give; null means those of the machine. On CPUs each rank takes one."""
    include_dashboard: bool | None = None
    """Whether a Ray of this run's own has a dashboard; null means where it is installed."""
    object_store_memory: int | None = Field(None, ge=80 * 2**20)
    """Bytes of shared memory of a Ray of this run's own."""
    runtime_env: dict[str, Any] = {}
    """Ray's runtime environment for all processes of the run."""


class RaySettings(Section):
    """Ray."""

    ray_init: RayInitSettings = RayInitSettings()
