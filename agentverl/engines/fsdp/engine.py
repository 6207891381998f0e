"""FSDPEngine: trains one model with packed micro-batches, on one rank or cut over many."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

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
from agentverl.engines.fsdp.shared_prompts import schedule
from agentverl.engines.fsdp.weights import Weights
from agentverl.engines.metrics import Metric, MetricAccumulator
from agentverl.engines.settings import EngineSettings, MicroBatchSettings
from agentverl.errors import BadInputError
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged

_MODEL_COLUMNS = ("prompts", "responses", "response_mask", "temperature")


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
        self._ranks: Ranks | None = None
        self._weights: Weights | ShardedWeights | None = None
        self._optimization: Optimization | None = None

    def initialize(self) -> None:
        if world_size() > 1 or self.settings.sharding.offload_policy:
            self._ranks = Ranks.join(self.settings.device, self.settings.sharding)
        packed_model = self._packed_model = load_packed_model(self.settings, self._ranks)
        trained, dtype = self.settings.optimizer is not None, getattr(torch, self.settings.dtype)
        if self._ranks is None:
            self._weights = Weights(packed_model.model, dtype, trained=trained)
        else:
            packed_model.requires_grad_(trained)
            shard(packed_model, packed_model.model, self._ranks, dtype, self.settings.sharding)
            self._weights = ShardedWeights(packed_model, packed_model.model, self._ranks, dtype)
        if self.settings.optimizer is not None:
            self._optimization = Optimization(self._weights.masters.values(), self.settings.optimizer)

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
                packed = self._pack(micro_batch)
                computed = self._compute(packed, names)
                places = _places_in(responses, micro_batch, rows)[packed.places.cpu()]
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
                    collected.add(self._forward_backward(data.select_idxs(rows), loss_function, names))
                else:
                    self._join_in(names)
        if self._ranks is None:
            return collected.result()
        return MetricAccumulator.of_ranks(self._ranks.gather(collected)).result()

    def _forward_backward(
        self, micro_batch: DataProto, loss_function: LossFunction, names: Sequence[str]
    ) -> Mapping[str, float | Metric]:
        packed = self._pack(micro_batch)
        computed = self._compute(packed, names)
        responses = micro_batch.batch.ragged("responses")
        padded = {name: _padded(computed[name], packed.places, responses) for name in names}
        values = padded.get("values")
        log_probs = padded["log_probs"] if values is None else torch.zeros_like(values)
        output = ModelOutput(log_probs, padded.get("entropys"), values)
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

    def _compute(self, packed: PackedBatch, names: Sequence[str]) -> dict[str, torch.Tensor]:
        if not packed.tokens:
            return dict.fromkeys(names, packed.temperature) if self._ranks is None else self._idle_pass(names)
        self.tokens_forwarded += packed.tokens
        computed: dict[str, torch.Tensor] = self.model(packed, names, kept_bytes=self.settings.kept_logits_bytes)
        return computed

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

    def save_checkpoint(self, path: Path, contents: Sequence[Content] = CHECKPOINT_CONTENTS) -> None:
        if "model" in contents:
            checkpoint.save_weights(path, self.weights.masters)
        if "optimizer" in contents:
            checkpoint.save_state(path / checkpoint.OPTIMIZER_FILE, self.optimization.state_dict())
        if "extra" in contents:
            extra = {"schedule_step": self.optimization.schedule_step, "random": checkpoint.random_state()}
            checkpoint.save_state(path / checkpoint.EXTRA_FILE, extra)
        if "hf_model" in contents:
            self.export(path / "huggingface")

    def load_checkpoint(self, path: Path, contents: Sequence[Content] = CHECKPOINT_CONTENTS) -> None:
        device = self.settings.device
        if "model" in contents:
            if isinstance(self.weights, ShardedWeights):
                raise BadInputError("a model that is cut over ranks does not take up checkpoints yet")
            self.weights.load(checkpoint.load_weights(path, self.weights.masters))
        if "optimizer" in contents:
            self.optimization.load_state_dict(checkpoint.load_state(path / checkpoint.OPTIMIZER_FILE, device))
        if "extra" in contents:
            extra = checkpoint.load_state(path / checkpoint.EXTRA_FILE, device)
            self.optimization.schedule_step = int(extra["schedule_step"])
            checkpoint.restore_random_state(extra["random"])

    def export(self, folder: Path) -> None:
        """Write the weights that the optimiser updates as a Hugging Face model folder (without a tokenizer)."""
        checkpoint.export_model(self.model.model, self.weights.masters, folder)

    def to(self, device: str, *, model: bool = True, optimizer: bool = True) -> None:
        target = self.settings.device if device == "device" else device
        if model:
            self.model.model.to(target)
            self.weights.to(target)
        if optimizer and self._optimization is not None:
            self._optimization.to(target)

    def disable_adapter(self) -> nullcontext[None]:
        raise BadInputError("this model has no adapter")


def _padded(values: torch.Tensor, places: torch.Tensor, responses: Ragged) -> torch.Tensor:
    """(M) values at their places among all response tokens, as (B, T) with zeros elsewhere."""
    width = int(responses.lengths.max()) if len(responses) else 0
    rows = torch.repeat_interleave(torch.arange(len(responses)), responses.lengths)
    columns = torch.arange(len(rows)) - responses.offsets[:-1][rows]
    index = (rows * width + columns).to(values.device)[places]
    flat = torch.zeros(len(responses) * width, dtype=values.dtype, device=values.device)
    return flat.index_copy(0, index, values).view(len(responses), width)


def _places_in(responses: Ragged, micro_batch: DataProto, rows: list[int]) -> torch.Tensor:
    """For each response token of the micro-batch, its place among those of the whole batch."""
    mine = micro_batch.batch.ragged("responses")
    shift = responses.offsets[:-1][rows] - mine.offsets[:-1]
    return torch.arange(len(mine.values)) + torch.repeat_interleave(shift, mine.lengths)
