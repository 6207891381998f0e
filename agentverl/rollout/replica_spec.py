"""What every rollout server that is made by name is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """One server; a plugin's classmethod `from_spec(spec)` makes it."""

    model: Path
    """A plain Hugging Face folder."""
    tokenizer: Any
    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory for weights and KV caches together."""
    seed: int = 0
    deterministic: bool = False
    load_weights: bool = True
    """False: the weights come from a training engine before the first request."""
    trust_remote_code: bool = False
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Entries that replace those of the model's config.json, in training and on the server alike."""
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The server's own settings, `rollout.engine_kwargs.<name>`."""
