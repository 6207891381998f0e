"""FSDPEngine: trains one model with packed micro-batches, on one rank or cut over many."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from agentverl.engines.base import CHECKPOINT_CONTENTS, BaseEngine, Content, LossFunction, ModelOutput
from agentverl.engines.fsdp import checkpoint
from agentverl.engines.fsdp.optimization import Optimization
from agentverl.engines.fsdp.packed_batch import PackedBatch, forward_lengths
from agentverl.engines.fsdp.packed_loading import load_packed_model
from agentverl.engines.fsdp.packed_model import PackedModel
from agentverl.engines.fsdp.ranks import Ranks, world_size
from agentverl.engines.fsdp.sharded_weights import ShardedWeights
from agentverl.engines.fsdp.sharding import reshard, shard, sum_gradients_over_ranks
from agentverl.engines.fsdp.shared_prompts import schedule, shares
from agentverl.engines.fsdp.threaded_passes import ThreadedPasses, threaded
from agentverl.engines.fsdp.token_places import padded, places_in
from agentverl.engines.fsdp.weights import Weights
from agentverl.engines.metrics import Metric, MetricAccumulator
from agentverl.engines.settings import EngineSettings, MicroBatchSettings
from agentverl.errors import BadInputError
from agentverl.protocol.chosen_rows import chosen_rows
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto

_SCHEDULE_STEP, _RANDOM = "extra/schedule_step", "extra/random/"
_MODEL_COLUMNS = ("prompts", "responses", "response_mask", "temperature")
_TOKENS_WORTH_A_THREAD = 256


class FSDPEngine(BaseEngine):
    """Any causal language model of transformers, on one CPU or GPU, or cut over those of many ranks.

    The environment says how many ranks there are (WORLD_SIZE). All of them make the same calls, each with its own rows,
    of which it may have none; metrics are those of all ranks.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.tokens_forwarded = 0
        """Tokens that have gone through the model since the start."""
        self._packed_model: PackedModel | None = None
        self._threads: ThreadedPasses | None = None
        self._ranks: Ranks | None = None
        self._weights: Weights | ShardedWeights | None = None
        self._optimization: Optimization | None = None
        self._saving: Future[Any] | None = None

    def initialize(self) -> None:
        if world_size() > 1 or self.settings.sharding.offload_policy:
            self._ranks = Ranks.join(self.settings.device, self.settings.sharding)
        packed_model = self._packed_model = load_packed_model(self.settings, self._ranks)
        trained, dtype = self.settings.optimizer is not None, getattr(torch, self.settings.dtype)
        if self._ranks is None:
            self._weights = Weights(packed_model.model, dtype, trained=trained, shared=self.settings.share_weights)
            if self.settings.device == "cpu":
                self._threads = threaded(packed_model, self._weights)
        else:
            packed_model.requires_grad_(trained)
            shard(packed_model, packed_model.model, self._ranks, dtype, self.settings.sharding)
            self._weights = ShardedWeights(packed_model.model, self._ranks, dtype)
        if self.settings.optimizer is not None:
            self._optimization = Optimization(self._weights.masters, self.settings.optimizer)

    @property
    def model(self) -> PackedModel:
        """The model; only after `initialize`."""
        if self._packed_model is None:
            raise BadInputError("the engine holds no model yet; call initialize() first")
        return self._packed_model

    @property
    def weights(self) -> Weights | ShardedWeights:
        """The weights; only after `initialize`."""
        if self._weights is None:
            raise BadInputError("the engine holds no weights yet; call initialize() first")
        return self._weights

    @property
    def optimization(self) -> Optimization:
        """Optimiser and schedule; only of a model that is trained."""
        if self._optimization is None:
            raise BadInputError("this engine has no optimiser: it was made without optimizer settings")
        return self._optimization

    @contextmanager
    def train_mode(self) -> Iterator[None]:
        with torch.enable_grad():
            yield

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        with torch.no_grad():
            yield
        if self._ranks is not None:
            reshard(self.model)

    def train_batch(
        self, data: DataProto, loss_function: LossFunction, *, calculate_entropy: bool = False
    ) -> dict[str, float]:
        self.optimizer_zero_grad()
        skipped_before = self.optimization.skipped_steps
        metrics = self.forward_backward_batch(data, loss_function, calculate_entropy=calculate_entropy)
        metrics["grad_norm"] = self.optimizer_step()
        metrics["skipped_steps"] = float(self.optimization.skipped_steps - skipped_before)
        self.optimizer_zero_grad()  # the rollout that follows has better use for their memory
        return metrics

    def infer_batch(
        self, data: DataProto, *, calculate_entropy: bool = False, calculate_sum_pi_squared: bool = False
    ) -> DataProto:
        responses = data.batch.ragged("responses")
        inputs = data.select([name for name in _MODEL_COLUMNS if name in data.batch], [], [])
        names = self._names(calculate_entropy, calculate_sum_pi_squared)
        columns = {name: responses.like(torch.zeros(len(responses.values))) for name in names}
        with self.eval_mode():
            for rows in self._schedule(inputs, self.settings.infer_micro_batch):
                if not rows:
                    self._join_in(names)
                    continue
                micro_batch = inputs.select_idxs(rows)
                computed, places_in_it = self._compute(micro_batch, names)
                places = places_in(responses, micro_batch, rows)[places_in_it.cpu()]
                for name, column in columns.items():
                    column.values[places] = computed[name].cpu()
        return DataProto(Columns(columns))

    def forward_backward_batch(
        self,
        data: DataProto,
        loss_function: LossFunction,
        *,
        forward_only: bool = False,
        calculate_entropy: bool = False,
    ) -> dict[str, float]:
        collected = MetricAccumulator()
        limits = self.settings.infer_micro_batch if forward_only else self.settings.train_micro_batch
        with self.eval_mode() if forward_only else self.train_mode():
            parts, names = self._schedule(data, limits), self._names(calculate_entropy)
            for number, rows in enumerate(parts, 1):
                if self._ranks is not None and not forward_only:
                    sum_gradients_over_ranks(self.model, self.settings.sharding, last=number == len(parts))
                if rows:
                    collected.add(self._forward_backward(chosen_rows(data, rows), loss_function, names))
                else:
                    self._join_in(names)
        if self._ranks is None:
            return collected.result()
        return MetricAccumulator.of_ranks(self._ranks.gather(collected)).result()

    def _forward_backward(
        self, micro_batch: DataProto, loss_function: LossFunction, names: Sequence[str]
    ) -> Mapping[str, float | Metric]:
        computed, places = self._compute(micro_batch, names)
        responses = micro_batch.batch.ragged("responses")
        columns = {name: padded(computed[name], places, responses) for name in names}
        values = columns.get("values")
        log_probs = columns["log_probs"] if values is None else torch.zeros_like(values)
        output = ModelOutput(log_probs, columns.get("entropys"), values)
        loss, metrics = loss_function(output, micro_batch.to(self.settings.device))
        if loss.requires_grad:
            torch.autograd.backward(loss)
        elif self._ranks is not None:
            self._join_backward(computed)
        return metrics

    def _join_in(self, names: Sequence[str]) -> None:
        """Take part in the pass of other ranks, without rows."""
        self._join_backward(self._idle_pass(names))

    def _idle_pass(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Nothing (0) of each name, from a pass over one token."""
        packed = PackedBatch.idle(torch.device(self.settings.device))
        computed = self.model(packed, names, kept_bytes=self.settings.kept_logits_bytes)
        return {name: computed[name][:0] for name in names}

    def _join_backward(self, computed: Mapping[str, torch.Tensor]) -> None:
        if torch.is_grad_enabled():
            torch.autograd.backward(next(iter(computed.values())).sum() * 0)

    def _schedule(self, data: DataProto, limits: MicroBatchSettings) -> list[list[int]]:
        """The rows of each micro-batch; where others have more of them, some are empty."""

        def mine() -> list[list[int]]:
            return schedule(data.batch.ragged("prompts"), forward_lengths(data).tolist(), limits)

        return mine() if self._ranks is None else self._ranks.in_lockstep(mine if len(data) else list)

    def _pack(self, micro_batch: DataProto) -> PackedBatch:
        return PackedBatch.of(micro_batch, torch.device(self.settings.device))

    def _names(self, calculate_entropy: bool, calculate_sum_pi_squared: bool = False) -> list[str]:
        """The columns that a pass computes."""
        if self.settings.head == "value":
            return ["values"]
        more = {"entropys": calculate_entropy, "sum_pi_squared": calculate_sum_pi_squared}
        return ["log_probs", *(name for name, asked in more.items() if asked)]

    def _compute(self, micro_batch: DataProto, names: Sequence[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """What the model says about the predicted tokens (M), and where they stand among all response tokens (M)."""
        kept_bytes = self.settings.kept_logits_bytes
        if self._threads is not None and (parts := self._parts(micro_batch, self._threads.count)):
            packed_parts, places = zip(*parts, strict=True)
            self.tokens_forwarded += sum(packed.tokens for packed in packed_parts)
            return self._threads(packed_parts, names, kept_bytes=kept_bytes), torch.cat(places)
        packed = self._pack(micro_batch)
        if not packed.tokens:
            nothing = dict.fromkeys(names, packed.temperature) if self._ranks is None else self._idle_pass(names)
            return nothing, packed.places
        self.tokens_forwarded += packed.tokens
        computed: dict[str, torch.Tensor] = self.model(packed, names, kept_bytes=kept_bytes)
        return computed, packed.places

    def _parts(self, micro_batch: DataProto, threads: int) -> list[tuple[PackedBatch, torch.Tensor]]:
        """What each thread computes, with places in the micro-batch; nothing where threads are not worth it."""
        lengths = forward_lengths(micro_batch).tolist()
        count = min(threads, sum(lengths) // _TOKENS_WORTH_A_THREAD)
        if count < 2:
            return []
        responses, parts = micro_batch.batch.ragged("responses"), []
        for rows in shares(micro_batch.batch.ragged("prompts"), lengths, count):
            part = micro_batch.select_idxs(rows)
            packed = self._pack(part)
            parts.append((packed, places_in(responses, part, rows)[packed.places]))
        return parts

    def optimizer_zero_grad(self) -> None:
        self.optimization.zero_grad()

    def optimizer_step(self) -> float:
        skipped_before = self.optimization.skipped_steps
        norm = self.optimization.step()
        if self.optimization.skipped_steps == skipped_before:
            self.weights.publish()
        return norm

    def lr_scheduler_step(self) -> float:
        lr = self.optimization.lr
        self.optimization.schedule_step += 1
        return lr

    def get_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.weights.published()

    def save_checkpoint(
        self, path: Path, contents: Sequence[Content] = CHECKPOINT_CONTENTS, *, asynchronous: bool = False
    ) -> None:
        self.wait_for_checkpoint()
        if "hf_model" in contents:
            self.export(path / "huggingface")
        if not (state := self._state(contents)):
            return
        if asynchronous:
            self._saving = checkpoint.start_saving(path, state, self._ranks)
        else:
            checkpoint.save(path, state, self._ranks)

    @property
    def is_saving(self) -> bool:
        return self._saving is not None and not self._saving.done()

    def wait_for_checkpoint(self) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            checkpoint.finish_saving(saving)

    def load_checkpoint(self, path: Path, contents: Sequence[Content] = CHECKPOINT_CONTENTS) -> None:
        saved, state = checkpoint.saved_names(path), self._state(contents)
        # Other numbers of ranks or devices leave other generators behind.
        state = {name: tensor for name, tensor in state.items() if name in saved or not name.startswith(_RANDOM)}
        checkpoint.load(path, state, self._ranks)
        if "model" in contents:
            self.weights.publish()
        if "extra" in contents:
            self.optimization.schedule_step = int(state[_SCHEDULE_STEP])
            checkpoint.restore_random_state(_RANDOM, self.get_data_parallel_rank(), state)

    def _state(self, contents: Sequence[Content]) -> dict[str, torch.Tensor]:
        """What these contents of a checkpoint are, by names that begin with them; of this rank its share."""
        state: dict[str, torch.Tensor] = {}
        if "model" in contents:
            state |= {f"model/{name}": master.detach() for name, master in self.weights.masters.items()}
        if "optimizer" in contents:
            state |= {f"optimizer/{name}": tensor for name, tensor in self.optimization.state().items()}
        if "extra" in contents:
            state[_SCHEDULE_STEP] = torch.tensor(self.optimization.schedule_step)
            state |= checkpoint.random_state(_RANDOM, self.get_data_parallel_rank())
        return state

    def export(self, folder: Path) -> None:
        """Write the weights that the optimiser updates as a Hugging Face model folder (without a tokenizer)."""
        first = self.get_data_parallel_rank() == 0
        tensors = {name: tensor.cpu() if first else tensor[:0] for name, tensor in self.weights.whole()}
        if first:
            checkpoint.export_model(self.model.model, tensors, folder)

    def get_data_parallel_rank(self) -> int:
        return 0 if self._ranks is None else self._ranks.rank

    def get_data_parallel_size(self) -> int:
        return 1 if self._ranks is None else self._ranks.size

    def get_data_parallel_group(self) -> Any:
        return None if self._ranks is None else self._ranks.group

    def to(self, device: str, *, model: bool = True, optimizer: bool = True) -> None:
        target = self.settings.device if device == "device" else device
        if model:
            self.model.to(target)
            self.weights.to(target)
        if optimizer and self._optimization is not None:
            self._optimization.to(target)

    def disable_adapter(self) -> nullcontext[None]:
        raise BadInputError("this model has no adapter")
