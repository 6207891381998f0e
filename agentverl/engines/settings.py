"""What a training engine is told; the workers fill it from the configuration."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedConfig

from agentverl.errors import SettingsError

Schedule = Literal["constant", "linear", "cosine", "wsd"]
Head = Literal["language_model", "value"]
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW, gradient clipping, and the learning rate over optimiser steps."""

    lr: float = 1e-6
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_grad: float = 1.0
    """Largest norm of the whole gradient."""
    lr_scheduler_type: Schedule = "constant"
    lr_warmup_steps: int = -1
    """-1 takes `lr_warmup_steps_ratio` of all steps."""
    lr_warmup_steps_ratio: float = 0.0
    min_lr_ratio: float = 0.0
    num_cycles: float = 0.5
    stable_ratio: float = 0.9
    """Share of the steps after the warm-up that `wsd` stays at `lr`."""
    total_training_steps: int = -1
    """Needed by every schedule that decays, and by a warm-up given as a ratio."""

    def __post_init__(self) -> None:
        needs_total = self.lr_scheduler_type != "constant" or (
            self.lr_warmup_steps < 0 and self.lr_warmup_steps_ratio > 0
        )
        if needs_total and self.total_training_steps < 1:
            raise SettingsError(
                f"lr_scheduler_type={self.lr_scheduler_type!r} with lr_warmup_steps_ratio={self.lr_warmup_steps_ratio} "
                f"needs the number of optimiser steps, got total_training_steps={self.total_training_steps}"
            )

    @property
    def warmup_steps(self) -> int:
        if self.lr_warmup_steps >= 0:
            return self.lr_warmup_steps
        return int(self.lr_warmup_steps_ratio * max(self.total_training_steps, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSettings:
    """Bounds of one forward pass; None sets no bound."""

    max_tokens: int | None = 16384
    max_sequences: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSettings:
    """How a model is cut over ranks; without effect where one rank holds all of it."""

    fsdp_size: int = -1
    """Ranks that share one copy of the model; -1 for all. Fewer keep several copies, whose gradients are summed up."""
    reshard_after_forward: bool = True
    """Drop a layer's gathered weights after its forward pass, and gather them again for its backward pass."""
    offload_policy: bool = False
    """Keep weights, gradients and the optimiser's state in host memory, where the optimiser then runs too."""
    use_no_sync_for_gradient_accumulation: bool = True
    """Sum gradients over the ranks once a batch, not once a micro-batch; needs memory for whole gradients."""
    timeout_seconds: float = 600.0
    """How long a rank waits for another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One model in a training engine."""

    model: Path | PreTrainedConfig
    """A plain Hugging Face folder, or a configuration whose model starts with random weights."""
    optimizer: OptimizerSettings | None = None
    """None makes a model that is only evaluated, such as a reference policy."""
    device: str = "cpu"
    model_dtype: str = "float32"
    """Of the weights that the optimiser updates."""
    dtype: str = "float32"
    """Of the computation; weights are rounded to it after each step."""
    enable_gradient_checkpointing: bool = False
    train_micro_batch: MicroBatchSettings = field(default_factory=MicroBatchSettings)
    infer_micro_batch: MicroBatchSettings = field(default_factory=MicroBatchSettings)
    kept_logits_bytes: int = 64 * 2**20
    """Logits of a micro-batch are kept for its backward pass up to this size, and computed again beyond it."""
    override_config: dict[str, Any] = field(default_factory=dict)
    """Replaces entries of the folder's `config.json`."""
    head: Head = "language_model"
    """What stands on the last hidden states; `value` is one number a token, 0 until it is trained."""
    trust_remote_code: bool = False
    share_weights: bool = False
    """Keep the weights of a model that one CPU rank holds in shared memory, where servers can read them."""
    sharding: ShardingSettings = field(default_factory=ShardingSettings)
    seed: int = 0
    """Of random weights."""

    def __post_init__(self) -> None:
        for name in ("model_dtype", "dtype"):
            if getattr(self, name) not in DTYPES:
                raise SettingsError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(DTYPES)}")
        if self.model_dtype == "bfloat16" and self.dtype == "float32":
            raise SettingsError("model_dtype=bfloat16 with dtype=float32 would lose every small update; use float32")
