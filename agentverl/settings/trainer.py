"""`trainer.*`: the run: how long, where to, and what is kept of it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agentverl.settings.section import Name, Names, Section

Port = Annotated[int, Field(ge=1024, le=65535)]


class TrainerSettings(Section):
    """The run itself."""

    seed: int = 0
    """All other seeds are derived from it."""
    launcher: Literal["local", "ray"] = "local"
    """Which processes the run has: `local` one, `ray` a controller, and one of each role on each device."""
    deterministic: bool = False
    """On a CPU: equal to the last bit, also after resuming, in all but time and memory."""
    debug: bool = False
    """One process, no deadlines, no live display, tracebacks: breakpoints hold."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    total_epochs: int = Field(30, gt=0)
    total_training_steps: int | None = Field(None, gt=0)
    """Ends the run instead of `total_epochs`."""
    critic_warmup: int = Field(0, ge=0)
    """Steps at the beginning in which only the critic learns."""
    project_name: Name = "agentverl"
    experiment_name: Name = Field("run", max_length=200)
    """Names the run's folder, `outputs/<experiment_name>`."""
    default_local_dir: Name | None = None
    """The run's folder, where it is not to be `outputs/<experiment_name>`."""
    logger: Names = ["console", "file"]
    nnodes: int = Field(1, gt=0)
    n_gpus_per_node: int = Field(1, gt=0)
    """Ranks a machine: on GPUs one a device, on CPUs one a core."""
    master_port_range: tuple[Port, Port] | None = None
    """Where ranks find each other: the lowest and the highest port that may be used; null means any free one."""
    ray_wait_register_center_timeout: float = Field(300.0, gt=0)
    """Seconds that devices which others hold, and processes that start, are waited for."""
    save_freq: int = Field(-1, ge=-1)
    """Steps from checkpoint to checkpoint; -1 or 0 means one at the end."""
    test_freq: int = Field(-1, ge=-1)
    """Steps from validation to validation; -1 or 0 means none during training."""
    val_before_train: bool = True
    val_only: bool = False
    """Validate and end."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """`auto` goes on with an unfinished run in the run's folder."""
    resume_from_path: str | None = None
    """The `checkpoints/global_step_N` folder of `resume_mode=resume_path`."""
    max_actor_ckpt_to_keep: int | None = Field(None, gt=0)
    """Newest checkpoints that are kept; null keeps all."""
    log_val_generations: int = Field(0, ge=0)
    """Trajectories of each validation that are shown by the loggers."""
    rollout_data_dir: str | None = None
    """Writes each step's samples as `<step>.jsonl` there, beside the journal."""
    validation_data_dir: str | None = None
    """Writes each validation's samples as `<step>.jsonl` there."""

    @property
    def run_folder(self) -> Path:
        """Where the run writes."""
        return Path(self.default_local_dir) if self.default_local_dir else Path("outputs") / self.experiment_name
