"""The embedded rollout server: any causal language model of transformers, served from a thread of this process."""

import asyncio
import contextlib
import copy
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from agentverl import blocking
from agentverl.device_memory import release_cached
from agentverl.errors import BadInputError, InfrastructureError
from agentverl.rollout.hf.checking import check
from agentverl.rollout.hf.engine import Engine, kv_bytes_for
from agentverl.rollout.hf.kv_budget import kv_budget
from agentverl.rollout.hf.model import load, refusing
from agentverl.rollout.hf.requests import Ids, Request, model_failure
from agentverl.rollout.hf.server import Server
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.hf.stop_strings import StopStrings
from agentverl.rollout.hf.weights import are_dropped, drop, stage
from agentverl.rollout.replica import RolloutReplica, SamplingParams
from agentverl.rollout.replica_spec import ReplicaSpec
from agentverl.settings.seeds import derive_seed
from agentverl.trajectory import TokenOutput

_PAUSED, _ASLEEP, _RELEASED = "paused", "asleep", "kv cache released"


class HFReplica(RolloutReplica):
    """Serves one model, with its own copy of the weights.

    `model` is a plain Hugging Face folder, or a configuration whose model starts with random weights. The tokenizer is
    needed for stop strings, and its end of text ends answers besides those of the generation configuration.

    Raises:
        ModelFolderError: the folder cannot be loaded.
        BadInputError: an architecture that cannot be served, or limits that do not fit together.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase | None = None,
        settings: HFSettings | None = None,
        *,
        weight_version: int = 0,
    ) -> None:
        self.settings = settings = settings or HFSettings()
        # A copy, because a fast tokenizer that two threads use at once refuses one of them.
        self._tokenizer = copy.deepcopy(tokenizer)
        end = getattr(tokenizer, "eos_token_id", None)
        self._model = load(model, settings, () if end is None else (end,))
        with refusing(self._model.model.config.model_type):
            check(self._model)
        self.max_model_len = self._limit()
        version = weight_version if settings.load_weights else -1
        budget = kv_budget(self._model, settings)
        self._engine = Engine(self._model, settings, budget, version)
        self._check_memory(budget)
        self._server = Server(self._engine)
        self._arrivals = itertools.count()

    @classmethod
    def from_spec(cls, spec: ReplicaSpec) -> "HFReplica":
        """The server that a run's configuration describes; `engine_kwargs` are further fields of HFSettings.

        Raises:
            BadInputError: besides what the constructor raises, unknown `engine_kwargs`.
        """
        common = {field.name: getattr(spec, field.name) for field in fields(HFSettings) if hasattr(spec, field.name)}
        known = [field.name for field in fields(HFSettings)]
        unknown = sorted(spec.engine_kwargs.keys() - set(known))
        if unknown:
            raise BadInputError(
                f"rollout.engine_kwargs.hf has no {', '.join(unknown)}; expected some of {', '.join(known)}"
            )
        return cls(spec.model, spec.tokenizer, HFSettings(**{**common, **spec.engine_kwargs}))

    def _limit(self) -> int:
        asked, positions = self.settings.max_model_len, self._model.max_positions
        if asked is not None and asked > positions:
            raise BadInputError(f"max_model_len={asked}: the model has {positions} positions; expected at most that")
        return asked or positions

    def _check_memory(self, given: int) -> None:
        needed = kv_bytes_for(self.max_model_len, self._engine.bytes_per_token)
        if needed > given:
            by_share = self._model.device.type == "cuda" and self.settings.kv_memory_bytes is None
            raised = "rollout.gpu_memory_utilization" if by_share else "kv_memory_bytes"
            raise BadInputError(
                f"the KV cache of one sequence of max_model_len={self.max_model_len} takes {needed} bytes, more than "
                f"the {given} that KV caches may use; lower max_model_len or raise {raised}"
            )

    async def init_standalone(self) -> None:
        self._server.start()

    async def init_hybrid(self, worker_group: Any = None) -> None:
        self._server.start()

    async def init_colocated(self, resource_pool: Any = None) -> None:
        self._server.start()

    async def shutdown(self) -> None:
        await self._server.stop()

    @property
    def weight_version(self) -> int:
        return self._engine.weight_version

    async def open(self, request_id: str) -> None:
        self._server.post(partial(self._engine.open, request_id))

    async def close(self, request_id: str) -> None:
        self._server.post(partial(self._engine.close, request_id))

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
        if image_data or video_data or audio_data:
            raise BadInputError("the hf server serves text only; expected no image_data, video_data or audio_data")
        if self.weight_version < 0:
            raise model_failure("the hf server has no weights yet; call update_weights first")
        params = SamplingParams.from_mapping(sampling_params)
        ids = self._prompt(prompt_ids)
        future = self._server.future()
        order = next(self._arrivals)
        room = self.max_model_len - len(ids)
        request = Request(
            request_id=request_id,
            params=params,
            priority=priority,
            order=order,
            ids=ids,
            prompt_length=len(ids),
            limit=len(ids) + min(room, params.max_tokens or room),
            ends=(*params.stop_token_ids, *(() if params.ignore_eos else self._model.eos_token_ids)),
            stop=self._stop_strings(params.stop),
            random=np.random.Generator(np.random.Philox(self._seed(params.seed, order))),
            settle=partial(self._server.settle_request, future),
        )
        self._server.post(partial(self._engine.submit, request))
        try:
            answer: TokenOutput = await future
        except asyncio.CancelledError:
            with contextlib.suppress(InfrastructureError):
                self._server.post(partial(self._engine.abort, lambda other: other is request))
            raise
        return answer

    def _prompt(self, prompt_ids: list[int]) -> Ids:
        ids = np.asarray(prompt_ids, dtype=np.int64)
        if ids.ndim != 1 or not len(ids):
            raise BadInputError(f"a prompt of shape {ids.shape}: expected a list of at least one token id")
        if len(ids) + 1 > self.max_model_len:
            raise BadInputError(
                f"a prompt of {len(ids)} tokens leaves no room for an answer in max_model_len={self.max_model_len}"
            )
        if ids.min() < 0 or ids.max() >= self._model.vocabulary:
            raise BadInputError(
                f"prompt ids from {ids.min()} to {ids.max()}: the vocabulary ends at {self._model.vocabulary - 1}"
            )
        return ids

    def _stop_strings(self, strings: tuple[str, ...]) -> StopStrings | None:
        if not strings:
            return None
        if self._tokenizer is None:
            raise BadInputError("stop strings need a tokenizer; give one to HFReplica or use stop_token_ids")
        return StopStrings(strings, self._tokenizer)

    def _seed(self, seed: int | None, order: int) -> int:
        return derive_seed(self.settings.seed, order) if seed is None else seed % 2**64

    async def abort(self, request_id: str) -> None:
        await self._server.call(partial(self._engine.abort, lambda request: request.request_id == request_id))

    async def abort_all_requests(self) -> None:
        await self._server.call(partial(self._engine.abort, lambda request: True))

    async def pause_generation(self) -> None:
        await self._server.call(partial(self._server.hold, _PAUSED))

    async def resume_generation(self) -> None:
        await self._server.call(partial(self._server.let_go, _PAUSED))

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        # Copying takes a while, which the loop must not miss.
        staged = await blocking.call(stage, self._model, weights)
        await self._server.call(partial(self._engine.load, staged, version))

    async def sleep(self, *, keep_weights: bool = True) -> None:
        await self._server.call(partial(self._fall_asleep, keep_weights))

    def _fall_asleep(self, keep_weights: bool) -> None:
        self._server.hold(_ASLEEP)
        self._engine.release_caches()
        if keep_weights:
            self._model.to("cpu")
        else:
            drop(self._model)
        release_cached(self._model.device)

    async def wake_up(self) -> None:
        await self._server.call(self._awake)

    def _awake(self) -> None:
        if are_dropped(self._model):
            raise BadInputError("the hf server dropped its weights when it fell asleep; call update_weights first")
        self._model.to(self._model.device)
        self._server.let_go(_ASLEEP)

    async def clear_kv_cache(self) -> None:
        await self._server.call(self._engine.clear_caches)

    async def release_kv_cache(self) -> None:
        await self._server.call(self._release)

    def _release(self) -> None:
        self._server.hold(_RELEASED)
        self._engine.release_caches()
        release_cached(self._model.device)

    async def resume_kv_cache(self) -> None:
        await self._server.call(partial(self._server.let_go, _RELEASED))

    async def health(self) -> dict[str, Any]:
        return {"state": self._server.state, **self._engine.counters()}
