"""Load any causal language model of transformers for packed forward passes."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from agentverl.data.model_config import load_config
from agentverl.engines.fsdp.packed_attention import PACKED_ATTENTION
from agentverl.engines.settings import EngineSettings
from agentverl.errors import BadInputError, ModelFolderError

_PACKED_LAYERS = {"full_attention", "sliding_attention"}


def load_model(settings: EngineSettings, device: str) -> PreTrainedModel:
    """The model with packed attention, on a device, its weights in `model_dtype`, without dropout.

    On the device `meta` it has no weights yet.

    Raises:
        ModelFolderError: the folder cannot be loaded.
        BadInputError: an architecture that cannot be packed.
    """
    config = _config(settings)
    _require_packable(config)
    dtype = getattr(torch, settings.model_dtype)
    how = {"dtype": dtype, "attn_implementation": PACKED_ATTENTION, "trust_remote_code": settings.trust_remote_code}
    try:
        if device == "meta":
            with torch.device(device):
                model = AutoModelForCausalLM.from_config(config, **how)
        elif isinstance(settings.model, PreTrainedConfig):
            model = _random(config, how, settings.seed)
        else:
            model = AutoModelForCausalLM.from_pretrained(settings.model, config=config, **how)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if "attention implementation" in str(error) or "attn_implementation" in str(error):
            raise BadInputError(
                f"{config.model_type} does not take part in transformers' AttentionInterface, which packing needs"
            ) from error
        raise ModelFolderError(f"model folder {settings.model} does not load: {error}") from error
    _without_dropout(model)
    if settings.enable_gradient_checkpointing and settings.optimizer is not None:
        _checkpoint_activations(model)
    # Layers only checkpoint their activations in training mode, which changes nothing else without dropout.
    return model.to(device).train()


def _config(settings: EngineSettings) -> PreTrainedConfig:
    if isinstance(settings.model, PreTrainedConfig):
        return copy.deepcopy(settings.model)  # loading notes the attention in it
    return load_config(settings.model, settings.override_config, trust_remote_code=settings.trust_remote_code)


def _require_packable(config: PreTrainedConfig) -> None:
    text_config = config.get_text_config(decoder=True)
    others = set(getattr(text_config, "layer_types", None) or ()) - _PACKED_LAYERS
    if others or config.is_encoder_decoder:
        what = ", ".join(sorted(others)) or "an encoder"
        raise BadInputError(
            f"the fsdp engine cannot train {config.model_type}: it has {what}; expected only "
            f"{' and '.join(sorted(_PACKED_LAYERS))} layers"
        )


def _random(config: PreTrainedConfig, how: dict[str, Any], seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, **how)


def _checkpoint_activations(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise BadInputError(
            f"{model.config.model_type} does not support model.enable_gradient_checkpointing; set it to false"
        )
    # transformers is renaming the method, and warns where the old name is used.
    newer = getattr(model, "activation_checkpointing_enable", None)
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})


def _without_dropout(model: PreTrainedModel) -> None:
    """Train the policy that was sampled from: servers never drop anything."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for config in _configs(model.config):
        for name, value in vars(config).items():
            if isinstance(value, float) and (name.endswith(("dropout", "pdrop")) or "dropout" in name):
                setattr(config, name, 0.0)


def _configs(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PreTrainedConfig):
            yield from _configs(value)
