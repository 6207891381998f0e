"""From sections of the configuration to what an engine is told."""

from pathlib import Path
from typing import Any

import torch

from agentverl import plugins
from agentverl.engines.base import BaseEngine
from agentverl.engines.settings import EngineSettings, MicroBatchSettings, OptimizerSettings, ShardingSettings
from agentverl.errors import SettingsError
from agentverl.settings import precision
from agentverl.settings.engine import FSDPSettings
from agentverl.settings.micro_batches import MicroBatchLimit
from agentverl.settings.model import ModelSettings
from agentverl.settings.optim import OptimSettings


def resolve_device(requested: str) -> str:
    """`cpu` or `cuda` for `trainer.device`; `auto` takes a GPU where there is one.

    Raises:
        SettingsError: a GPU is asked for and there is none.
    """
    if requested == "cuda" and not torch.cuda.is_available():
        raise SettingsError("trainer.device=cuda, but torch sees no GPU here; set trainer.device=cpu, or auto")
    if requested == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return requested


def optimizer_settings(optim: OptimSettings, clip_grad: float, total_training_steps: int) -> OptimizerSettings:
    """AdamW, with the number of optimiser steps of the run (-1 where it is unknown)."""
    return OptimizerSettings(**optim.model_dump(exclude={"clip_grad"}), clip_grad=clip_grad,
                             total_training_steps=total_training_steps)  # fmt: skip


def engine_settings(model: ModelSettings, folder: Path, fsdp: FSDPSettings, device: str, **more: Any) -> EngineSettings:
    """One model of a run; `more` are fields of EngineSettings."""
    return EngineSettings(
        model=folder,
        device=device,
        model_dtype=fsdp.model_dtype,
        dtype=precision.resolve(fsdp.dtype, device) if fsdp.model_dtype == "float32" else fsdp.model_dtype,
        override_config=model.override_config,
        trust_remote_code=model.trust_remote_code,
        sharding=ShardingSettings(
            fsdp_size=fsdp.fsdp_size,
            reshard_after_forward=fsdp.reshard_after_forward,
            offload_policy=fsdp.offload_policy and device != "cpu",
            use_no_sync_for_gradient_accumulation=fsdp.use_no_sync_for_gradient_accumulation,
        ),
        **more,
    )


def micro_batch(limit: MicroBatchLimit) -> MicroBatchSettings:
    """The bounds of a forward pass."""
    return MicroBatchSettings(max_tokens=limit.max_tokens, max_sequences=limit.max_sequences)


def make_engine(name: str, settings: EngineSettings) -> BaseEngine:
    """The engine of that name, with its model loaded.

    Raises:
        PluginError: nothing has that name.
        BadInputError: the model cannot be loaded or trained.
    """
    engine: BaseEngine = plugins.find("engines", name)(settings)
    engine.initialize()
    return engine
