"""A causal language model that gives the log-probabilities of a packed batch's tokens."""

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from agentverl.engines.fsdp.packed_batch import PackedBatch
from agentverl.engines.fsdp.packed_layout import PackedLayout
from agentverl.engines.fsdp.row_gathers import take_rows
from agentverl.engines.fsdp.squared_probabilities import sum_pi_squared
from agentverl.engines.fsdp.token_log_probs import token_log_probs
from agentverl.engines.fsdp.value_head import token_values
from agentverl.errors import BadInputError

_HIDDEN_SCALE = 300.0
"""Hidden states are blown up by this in the check, so that a cap on logits or their scaling cannot hide."""


class PackedModel(torch.nn.Module):
    """Runs a model over packed batches.

    Where its logits are the output embedding of its last hidden states, they are made chunk by chunk; any other
    model's own path makes those of a whole micro-batch.

    Args:
        model: a model with packed attention.
        has_plain_head: whether its logits are that; None finds out, and needs the weights.

    Raises:
        BadInputError: packed sequences see each other in this architecture.
    """

    model: PreTrainedModel
    has_plain_head: bool

    def __init__(self, model: PreTrainedModel, *, has_plain_head: bool | None = None) -> None:
        super().__init__()
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        if has_plain_head is None:
            with torch.no_grad():
                _require_separate_sequences(self)
                has_plain_head = _has_plain_head(model)
        self.has_plain_head = has_plain_head

    def forward(self, packed: PackedBatch, names: Collection[str], *, kept_bytes: int) -> dict[str, torch.Tensor]:
        """What the model says about the M predicted tokens, float32: `log_probs`, and more of the names below.

        `entropys` and `sum_pi_squared` (without gradient) of their distributions; a model with a value head gives
        `values` instead, before each token.
        """
        if "values" in names:
            hidden = _base_outputs(self.model, packed.input_ids, packed.position_ids, packed.layout)[0]
            return {"values": token_values(take_rows(hidden, packed.predicting), self.model.get_output_embeddings())}
        if self.has_plain_head:
            return self._from_hidden(packed, names, kept_bytes)
        logits = self._logits(packed.input_ids, packed.position_ids, packed.layout, packed.predicting)
        log_softmax = torch.log_softmax(logits.float() / packed.temperature[:, None], -1)
        probabilities = log_softmax.exp()
        return {
            # Summed up, not squeezed: FSDP wants outputs that are no views.
            "log_probs": log_softmax.gather(1, packed.labels[:, None]).sum(1),
            "entropys": -(probabilities * log_softmax).sum(-1),
            "sum_pi_squared": probabilities.detach().square().sum(-1),
        }

    def _from_hidden(self, packed: PackedBatch, names: Collection[str], kept_bytes: int) -> dict[str, torch.Tensor]:
        all_hidden = _base_outputs(self.model, packed.input_ids, packed.position_ids, packed.layout)[0]
        hidden, head = take_rows(all_hidden, packed.predicting), self.model.get_output_embeddings()
        log_probs, entropy = token_log_probs(
            hidden,
            head.weight,
            head.bias,
            packed.labels,
            packed.temperature,
            with_entropy="entropys" in names,
            kept_bytes=kept_bytes,
        )
        computed = {"log_probs": log_probs, "entropys": entropy}
        if "sum_pi_squared" in names:
            computed["sum_pi_squared"] = sum_pi_squared(hidden, head.weight, head.bias, packed.temperature)
        return computed

    def _logits(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, layout: PackedLayout, kept: torch.Tensor
    ) -> torch.Tensor:
        keep = {"logits_to_keep": kept} if self._keeps_logits else {}
        output = self.model(
            input_ids=input_ids, position_ids=position_ids, packed_layout=layout, use_cache=False, **keep
        )
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_logits else take_rows(logits, kept)


def _base_outputs(
    model: PreTrainedModel, input_ids: torch.Tensor, position_ids: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Last hidden states (1, N, H)."""
    hidden: torch.Tensor = model.base_model(
        input_ids=input_ids, position_ids=position_ids, packed_layout=layout, use_cache=False
    ).last_hidden_state
    return hidden


def _require_separate_sequences(packed_model: PackedModel) -> None:
    device = packed_model.model.device
    ids = torch.arange(1, 6, device=device)[None]
    positions = torch.tensor([[0, 1, 2, 0, 1]], device=device)
    together = packed_model._logits(ids, positions, PackedLayout.of([3, 2]), torch.tensor([3, 4], device=device))
    alone = packed_model._logits(
        ids[:, 3:], positions[:, 3:], PackedLayout.of([2]), torch.tensor([0, 1], device=device)
    )
    scale = alone.float().abs().max().clamp(min=1e-6)
    tolerance = 1e-4 if alone.dtype == torch.float32 else 5e-2
    if not bool((together - alone).float().abs().max() <= tolerance * scale):
        raise BadInputError(
            f"the fsdp engine cannot train {packed_model.model.config.model_type}: packed sequences see each other in "
            "this architecture"
        )


def _has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the logits are nothing but the output embedding of the last hidden states."""
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or model.base_model is model:
        return False
    ids, layout = torch.ones(1, 1, dtype=torch.long, device=model.device), PackedLayout.of([1])
    positions = torch.zeros_like(ids)
    with _scaled_hidden_states(model):
        logits = model(input_ids=ids, position_ids=positions, packed_layout=layout, use_cache=False).logits
        plain = head(_base_outputs(model, ids, positions, layout))
    return torch.allclose(logits.float(), plain.float(), rtol=1e-3, atol=1e-3)


@contextmanager
def _scaled_hidden_states(model: PreTrainedModel) -> Iterator[None]:
    def scale(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * _HIDDEN_SCALE
        return output

    hook = model.base_model.register_forward_hook(scale)
    try:
        yield
    finally:
        hook.remove()
