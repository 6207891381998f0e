"""What every rollout server offers: tokens for a prompt, new weights at a token boundary, leases of trajectories."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from agentverl.errors import BadInputError
from agentverl.rollout.replica_spec import ReplicaSpec
from agentverl.trajectory import TokenOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled; the keys of the `sampling_params` mapping that `generate` takes."""

    temperature: float = 1.0
    """0 is greedy; log-probabilities are then those at temperature 1."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 or 0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of ids in the prompt or the answer so far."""
    max_tokens: int | None = None
    """None means up to the model's context."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; the tokens that complete one stay in `token_ids`."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    """Seeds the request's own stream of random numbers, whatever it is batched with."""
    logprobs: bool = True

    def __post_init__(self) -> None:
        self._require(
            math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "a number of at least 0"
        )
        self._require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        self._require(self.top_k >= -1, "top_k", "-1 or 0 (off) or a count")
        self._require(0 <= self.min_p <= 1, "min_p", "from 0 to 1")
        finite = math.isfinite(self.repetition_penalty)
        self._require(finite and self.repetition_penalty > 0, "repetition_penalty", "a number above 0")
        self._require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1")
        self._require(all(self.stop), "stop", "strings that are not empty")
        self._require(all(token >= 0 for token in self.stop_token_ids), "stop_token_ids", "token ids of at least 0")

    def _require(self, holds: bool, name: str, expected: str) -> None:
        if not holds:
            raise BadInputError(f"sampling parameter {name}={getattr(self, name)!r}: expected {expected}")

    @property
    def bends_distribution(self) -> bool:
        """Whether tokens are drawn from something else than softmax(logits / temperature)."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.repetition_penalty != 1

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "SamplingParams":
        """Sampling parameters from a mapping with the fields' names; `max_new_tokens` is another name of `max_tokens`.

        Raises:
            BadInputError: an unknown key, a value of the wrong type or out of range.
        """
        values = dict(mapping)
        if "max_new_tokens" in values:
            values["max_tokens"] = values.pop("max_new_tokens")
        known = {field.name for field in fields(cls)}
        unknown = sorted(values.keys() - known)
        if unknown:
            raise BadInputError(
                f"unknown sampling parameters {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            )
        return cls(**{name: _coerce(name, value) for name, value in values.items()})


_INTEGERS = frozenset({"top_k", "max_tokens", "seed"})
_FLAGS = frozenset({"ignore_eos", "logprobs"})
_OPTIONAL = frozenset({"max_tokens", "seed"})


def _coerce(name: str, value: Any) -> Any:
    if value is None and name in _OPTIONAL:
        return None
    try:
        if name == "stop":
            return (value,) if isinstance(value, str) else tuple(_instance(item, str) for item in value or ())
        if name == "stop_token_ids":
            return tuple(_integer(item) for item in value or ())
        if name in _INTEGERS:
            return _integer(value)
        if name in _FLAGS:
            return _instance(value, bool)
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise BadInputError(f"sampling parameter {name}={value!r} has the wrong type") from None


def _instance(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value:
        raise TypeError
    return int(value)


class RolloutReplica(ABC):
    """One rollout server. Subclass to serve tokens with another inference engine.

    All methods are called on one event loop. A request belongs to a trajectory (`request_id`); `open` and `close` are
    the two ends of that trajectory's lease, between which the server may keep its KV cache. Once `init_*` was called,
    `shutdown` must be, and everything pending then fails.
    """

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: ReplicaSpec) -> "RolloutReplica":
        """The server that a configuration describes; it does not serve yet.

        Raises:
            BadInputError: the model or the limits cannot be served.
        """

    @abstractmethod
    async def init_standalone(self) -> None:
        """Start serving on resources of its own."""

    @abstractmethod
    async def init_hybrid(self, worker_group: Any = None) -> None:
        """Start serving in the processes of `worker_group`, which also train."""

    @abstractmethod
    async def init_colocated(self, resource_pool: Any = None) -> None:
        """Start serving in processes of its own on the devices of `resource_pool`, which others use too."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop serving and free everything; may be called twice."""

    @property
    @abstractmethod
    def weight_version(self) -> int:
        """The version of the weights that the next token is sampled with; -1 before the first weights."""

    @abstractmethod
    async def open(self, request_id: str) -> None:
        """Begin a trajectory's lease: its KV cache may be kept between requests."""

    @abstractmethod
    async def close(self, request_id: str) -> None:
        """End a trajectory's lease: what is kept for it is dropped. Closing what is not open does nothing."""

    @abstractmethod
    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: Mapping[str, Any],
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
    ) -> TokenOutput:
        """Sample an answer to `prompt_ids`. Cancelling the call aborts the request on the server.

        Tokens that end the answer (end of turn, those of a stop string) are part of it. `log_probs` are
        log_softmax(logits / temperature) of the undistorted distribution. A lower `priority` is served earlier.

        Raises:
            BadInputError: unknown sampling parameters, or a prompt that leaves no room for a token.
            InfrastructureError: the server failed or was shut down; its boundary is `model`.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End the requests of a trajectory with what they have; their `stop_reason` is `aborted`."""

    @abstractmethod
    async def abort_all_requests(self) -> None:
        """End all requests, running and waiting, with what they have; their `stop_reason` is `aborted`."""

    @abstractmethod
    async def pause_generation(self) -> None:
        """Stop at the next token boundary; requests stay where they are."""

    @abstractmethod
    async def resume_generation(self) -> None:
        """Go on after `pause_generation`."""

    @abstractmethod
    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Serve a complete new set of weights from the next token boundary on; the KV cache is dropped.

        Raises:
            BadInputError: names are missing or unknown, or shapes differ; the old weights then go on serving.
        """

    @abstractmethod
    async def sleep(self, *, keep_weights: bool = True) -> None:
        """Give memory back: the KV cache is dropped, weights leave the accelerator for host memory; requests wait.

        With `keep_weights=False` the weights are dropped everywhere, and `wake_up` needs an `update_weights` before it.
        """

    @abstractmethod
    async def wake_up(self) -> None:
        """Serve again after `sleep`; does nothing to a server that is awake.

        Raises:
            BadInputError: the weights were dropped, and no complete set has come since.
        """

    @abstractmethod
    async def clear_kv_cache(self) -> None:
        """Drop every kept KV cache; running requests are prefilled again."""

    @abstractmethod
    async def release_kv_cache(self) -> None:
        """Drop the KV cache and its memory; requests wait until `resume_kv_cache`."""

    @abstractmethod
    async def resume_kv_cache(self) -> None:
        """Serve again after `release_kv_cache`."""

    @abstractmethod
    async def health(self) -> dict[str, Any]:
        """Counters of a server that works: `state`, `running`, `waiting`, `weight_version` and more.

        Raises:
            InfrastructureError: the server is dead; its boundary is `model`.
        """
