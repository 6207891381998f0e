"""Any causal language model of transformers, made ready to be served: loaded, checked, run in packed steps."""

import copy
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, Cache, GenerationConfig, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from agentverl.data.model_config import context_length, load_config
from agentverl.errors import BadInputError, ModelFolderError
from agentverl.rollout.hf.attention import NAME, Segment, attending
from agentverl.rollout.hf.flat_forward import FlatForward
from agentverl.rollout.hf.kv_pool import KVPool, LayerShape
from agentverl.rollout.hf.planning import Step
from agentverl.rollout.hf.settings import HFSettings

_SERVED_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(slots=True)
class ServedModel:
    """A model whose attention reads the KV pool, with what the server has to know of it."""

    model: Any
    layers: list[LayerShape]
    vocabulary: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    cache_argument: str
    flat: FlatForward | None = None
    """The same forward pass with less between its operations, for two or more tokens."""
    spare: dict[str, torch.Tensor] = field(default_factory=dict)
    """Memory for the next set of weights, by name."""

    def forward(self, step: Step, pool: KVPool) -> torch.Tensor:
        """Logits (S, V; float32) of the rows that the step samples; the pool then holds the step's keys and values."""
        pool.point_at(step.rows, step.positions)
        ids, positions = self._tensor(step.ids), self._tensor(step.positions)
        with attending(step.segments):
            if self.flat is not None and step.sampled > 1:
                keep = None if step.keep is None else self._tensor(step.keep)
                return self.flat(ids, positions, keep, pool.cache).float()
            output = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=True,
                logits_to_keep=0 if step.keep is None else self._tensor(step.keep),
                **{self.cache_argument: pool.cache},
            )
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    @property
    def cache_dtype(self) -> torch.dtype:
        """What keys and values are kept in: attention of few queries in smaller types is slower on CPUs."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    def _tensor(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def forget_copies(self) -> None:
        """Drop what was made of the weights, so that the next step makes it anew."""
        if self.flat is not None:
            self.flat.forget_weights()

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by every name they have: tied ones have several."""
        return dict(self.model.named_parameters(remove_duplicate=False))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Buffers that belong to a checkpoint."""
        saved = self.model.state_dict().keys()
        return {name: buffer for name, buffer in self.model.named_buffers() if name in saved}

    def to(self, device: torch.device | str) -> None:
        """Move the weights."""
        self.spare.clear()
        self.model.to(device)


def load(model: str | Path | PreTrainedConfig, settings: HFSettings, eos_token_ids: Iterable[int]) -> ServedModel:
    """Load a model folder, or build a configuration's model with random weights.

    `eos_token_ids` are the tokenizer's; those of the model's generation configuration join them.

    Raises:
        ModelFolderError: the folder cannot be loaded.
        BadInputError: the architecture cannot be served with transformers' attention and cache interfaces.
    """
    config = _config(model, settings)
    _require_served(config)
    dtype, device = getattr(torch, settings.dtype), torch.device(settings.device)
    loaded = _load(model, config, settings, dtype).to(device).eval().requires_grad_(False)
    name = "cache" if "cache" in inspect.signature(loaded.forward).parameters else "past_key_values"
    with refusing(config.model_type):
        layers = _probe(loaded, name, device)
    return ServedModel(
        model=loaded,
        layers=layers,
        vocabulary=loaded.get_input_embeddings().num_embeddings,
        max_positions=_max_positions(config),
        eos_token_ids=tuple(sorted({*eos_token_ids, *_eos(loaded.generation_config, config)})),
        dtype=dtype,
        device=device,
        cache_argument=name,
    )


@contextmanager
def refusing(model_type: str) -> Iterator[None]:
    """What a model's code raises within it means that the model cannot be served."""
    try:
        yield
    except BadInputError:
        raise
    except Exception as error:  # a model's code may raise anything when it is not run as its author expected
        raise BadInputError(f"the hf server cannot serve {model_type}: {type(error).__name__}: {error}") from error


def _max_positions(config: PreTrainedConfig) -> int:
    return context_length(config) or 2**31


def _config(model: str | Path | PreTrainedConfig, settings: HFSettings) -> PreTrainedConfig:
    if isinstance(model, PreTrainedConfig):
        return copy.deepcopy(model)  # loading notes the attention in it
    return load_config(Path(model), settings.override_config, trust_remote_code=settings.trust_remote_code)


def _require_served(config: PreTrainedConfig) -> None:
    text_config = config.get_text_config(decoder=True)
    unknown = set(getattr(text_config, "layer_types", None) or ()) - _SERVED_LAYERS
    if unknown or config.is_encoder_decoder:
        what = ", ".join(sorted(unknown)) or "an encoder"
        raise BadInputError(
            f"the hf server cannot serve {config.model_type}: it has {what}; "
            f"expected only {' and '.join(sorted(_SERVED_LAYERS))} layers (rollout.name=vllm serves others)"
        )


def _load(
    model: str | Path | PreTrainedConfig, config: PreTrainedConfig, settings: HFSettings, dtype: torch.dtype
) -> Any:
    how = {"dtype": dtype, "attn_implementation": NAME, "trust_remote_code": settings.trust_remote_code}
    try:
        if isinstance(model, PreTrainedConfig) or not settings.load_weights:
            return AutoModelForCausalLM.from_config(config, **how)
        return AutoModelForCausalLM.from_pretrained(model, config=config, **how)
    except (OSError, ValueError, KeyError) as error:
        if "attention implementation" in str(error) or "attn_implementation" in str(error):
            raise BadInputError(
                f"{config.model_type} does not take part in transformers' AttentionInterface"
            ) from error
        raise ModelFolderError(f"model folder {model} does not load: {error}") from error


def _eos(generation: GenerationConfig | None, config: PreTrainedConfig) -> set[int]:
    for source in (generation, config):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return {found} if isinstance(found, int) else set(found)
    return set()


def _probe(model: Any, cache_argument: str, device: torch.device) -> list[LayerShape]:
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    segment = Segment(0, 1, 0, 1, 1, torch.ones(1, dtype=torch.int64, device=device), keys=1, even=True)
    zero = torch.zeros(1, 1, dtype=torch.int64, device=device)
    with torch.inference_mode(), attending([segment]):
        model(input_ids=zero, position_ids=zero, use_cache=True, **{cache_argument: cache})
    if not cache.layers or any(layer.keys is None for layer in cache.layers):
        raise BadInputError(f"the hf server cannot serve {model.config.model_type}: it fills no transformers cache")
    return [LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers]
