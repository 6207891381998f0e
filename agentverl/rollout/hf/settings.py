"""The limits of the embedded server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentverl.errors import BadInputError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class HFSettings:
    """What one embedded server may use, and how it loads its model."""

    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    """Prompt and answer together; None takes the model's own limit."""
    max_num_seqs: int = 256
    """Requests decoded together; others wait."""
    max_num_batched_tokens: int = 8192
    """Tokens of one forward pass; a longer prefill is cut into chunks."""
    kv_memory_bytes: int | None = None
    """Bound on all KV caches; None takes what `gpu_memory_utilization` leaves, on a CPU a quarter of what is free."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory for weights and KV caches together."""
    seed: int = 0
    """Seeds the requests that bring no seed."""
    deterministic: bool = False
    """Work in rounds: start when every open lease has a request waiting, run those to their end, wait again."""
    load_weights: bool = True
    """False builds the model empty; requests fail until the first `update_weights`."""
    trust_remote_code: bool = False
    override_config: Mapping[str, Any] = field(default_factory=dict)
    """Entries that replace those of the model's config.json."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise BadInputError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise BadInputError(
                f"gpu_memory_utilization={self.gpu_memory_utilization!r}: expected a share above 0 and at most 1"
            )
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_memory_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadInputError(f"{name}={value!r}: expected a whole number of at least 1")
