"""The configuration of supervised fine-tuning: `agentverl sft`."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from agentverl.settings.engine import CheckpointSettings, FSDPSettings
from agentverl.settings.micro_batches import MicroBatchLimit
from agentverl.settings.model import ModelSettings
from agentverl.settings.optim import OptimSettings
from agentverl.settings.section import Name, Names, Section


class SFTDataSettings(Section):
    """Conversations; what an assistant wrote in them is learnt."""

    train_files: Names = []
    """Parquet, JSON or JSONL files. Must be set."""
    val_files: Names = []
    messages_key: str = "messages"
    tools_key: str = "tools"
    train_batch_size: int = Field(256, gt=0)
    """Conversations an optimiser step."""
    use_dynamic_bsz: bool = True
    """Cut micro-batches by tokens."""
    max_token_len_per_gpu: int = Field(8192, gt=0)
    """Tokens a forward pass, where micro-batches are cut by tokens."""
    micro_batch_size_per_gpu: int = Field(4, gt=0)
    """Conversations a forward pass, where micro-batches are not cut by tokens."""
    max_length: int = Field(1024, gt=0)
    """Tokens a conversation."""
    truncation: Literal["error", "left", "right", "drop"] = "error"
    """What happens to a longer one."""
    train_max_samples: int = Field(-1, ge=-1)
    val_max_samples: int = Field(-1, ge=-1)
    shuffle: bool = True
    seed: int | None = None
    """Seed of the order; null means `trainer.seed`."""
    apply_chat_template_kwargs: dict[str, Any] = {}

    @property
    def micro_batch_limit(self) -> MicroBatchLimit:
        """The size of a micro-batch."""
        if self.use_dynamic_bsz:
            return MicroBatchLimit(self.max_token_len_per_gpu, None)
        return MicroBatchLimit(None, self.micro_batch_size_per_gpu)


class SFTOptimSettings(OptimSettings):
    """AdamW; the learning rate is higher than that of reinforcement learning."""

    lr: float = Field(1e-3, gt=0)
    clip_grad: float = Field(1.0, gt=0)


class SFTTrainerSettings(Section):
    """The run itself."""

    seed: int = 0
    deterministic: bool = False
    """Refused where it would not hold, on a GPU; on a CPU fine-tuning always is."""
    debug: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    launcher: Literal["local", "ray"] = "local"
    nnodes: int = Field(1, gt=0)
    n_gpus_per_node: int = Field(1, gt=0)
    total_epochs: int = Field(4, gt=0)
    total_training_steps: int | None = Field(None, gt=0)
    """Ends the run instead of `total_epochs`."""
    project_name: Name = "agentverl"
    experiment_name: Name = Field("sft", max_length=200)
    default_local_dir: Name | None = None
    """The run's folder, where it is not to be `outputs/<experiment_name>`."""
    logger: Names = ["console", "file"]
    save_freq: int = Field(-1, ge=-1)
    test_freq: int = Field(-1, ge=-1)
    """Steps from one loss on `val_files` to the next; -1 or 0 means only at the end."""
    max_ckpt_to_keep: int | None = Field(None, gt=0)
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    resume_from_path: str | None = None

    @property
    def run_folder(self) -> Path:
        """Where the run writes; the trained model is its `huggingface` folder."""
        return Path(self.default_local_dir) if self.default_local_dir else Path("outputs") / self.experiment_name


class SFTSettings(Section):
    """The root of supervised fine-tuning."""

    data: SFTDataSettings = SFTDataSettings()
    model: ModelSettings = ModelSettings()
    optim: SFTOptimSettings = SFTOptimSettings()
    engine: FSDPSettings = FSDPSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    trainer: SFTTrainerSettings = SFTTrainerSettings()
