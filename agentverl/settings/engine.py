"""`*.fsdp_config.*` and `*.checkpoint.*`: how the training engine holds and saves a model."""

from typing import Literal

from pydantic import Field, model_validator

from agentverl.settings.section import Section

Precision = Literal["auto", "float32", "bfloat16"]
"""`auto`: bfloat16 on a GPU and on a CPU with avx512_bf16 or amx_bf16, float32 elsewhere."""
PRECISION_NAMES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16"}


class FSDPSettings(Section):
    """Precision and offloading of one model in the fsdp engine."""

    model_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that the optimiser updates."""
    dtype: Precision = "auto"
    """Of the computation."""
    param_offload: bool = False
    """Keep the weights in host memory while the rollout server runs."""
    optimizer_offload: bool = False
    """Keep the optimiser's state in host memory while the rollout server runs."""
    offload_policy: bool = False
    """Keep weights, gradients and the optimiser's state in host memory always; the optimiser then runs there."""
    fsdp_size: int = Field(-1, ge=-1)
    """Ranks that share one copy of the model; -1 means all. With fewer there are several copies (HSDP)."""
    reshard_after_forward: bool = True
    """Drop a layer's gathered weights after its forward pass, and gather them again for the backward pass."""
    use_no_sync_for_gradient_accumulation: bool = True
    """Sum gradients over the ranks once a batch, not once a micro-batch; needs memory for whole gradients."""

    @model_validator(mode="before")
    @classmethod
    def _accept_short_precisions(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        return {
            key: PRECISION_NAMES.get(value, value) if isinstance(value, str) else value for key, value in values.items()
        }


Content = Literal["model", "optimizer", "extra", "hf_model"]


class CheckpointSettings(Section):
    """What a checkpoint holds."""

    save_contents: list[Content] = ["model", "optimizer", "extra"]
    """`extra` is the schedule and the random state; `hf_model` adds a Hugging Face folder to serve or share."""
    load_contents: list[Content] | None = None
    """What resuming reads; null means `save_contents`."""
    async_save: bool = False
    """Write while training goes on; the checkpoint counts once it is complete."""
