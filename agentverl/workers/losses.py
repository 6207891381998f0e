"""What an engine minimises: losses of a micro-batch whose tokens bring their weight in the whole batch."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from agentverl.algorithms.aggregation import agg_loss, row_loss_weights
from agentverl.algorithms.kl import compute_kl_loss
from agentverl.algorithms.loss_config import LossConfig
from agentverl.algorithms.masked import masked_mean
from agentverl.algorithms.registry import get_policy_loss_fn
from agentverl.engines.base import ModelOutput
from agentverl.engines.metrics import Aggregation, Metric
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.actor import ActorSettings
from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.settings.seeds import derive_seed

Metrics = dict[str, float | Metric]


def ppo_loss(
    config: ActorSettings,
    output: ModelOutput,
    micro_batch: DataProto,
    correction: RolloutCorrectionSettings | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """The policy loss that `config` names, minus its entropy bonus, plus the KL to the reference.

    Columns: `response_mask`, `advantages`, `loss_weight`, `old_log_probs` (absent: the current ones, detached, as with
    one optimiser step on the weights that sampled), `rollout_is_weights` where there are any, `ref_log_prob` where
    `use_kl_loss`.

    Args:
        correction: with its `bypass_mode`, `old_log_probs` are the rollout policy's and the loss is that of the mode.
    """
    columns = micro_batch.batch
    mask, weight = columns.ragged("response_mask").to_padded(), columns.ragged("loss_weight").to_padded()
    loss, shares = _policy_loss(config, correction, output.log_probs, micro_batch)
    tokens = float(mask.sum())
    metrics: Metrics = {name: Metric(value, aggregation_of(name), tokens) for name, value in shares.items()}
    metrics |= _distance_from_server(output, micro_batch, tokens)
    metrics["actor/pg_loss"] = _sum(loss)
    if output.entropy is not None:
        entropy = agg_loss(output.entropy, mask, config.weight_mode, loss_weight=weight)
        mean_entropy = float(masked_mean(output.entropy.detach(), mask))
        metrics |= {"actor/entropy_loss": _sum(entropy), "actor/entropy": Metric(mean_entropy, "mean", tokens)}
        loss = loss - config.entropy_coeff * entropy
    if config.use_kl_loss:
        reference = columns.ragged("ref_log_prob").to_padded()
        kl = compute_kl_loss(
            output.log_probs, reference, mask, config.kl_loss_type, config.weight_mode, loss_weight=weight
        )
        metrics |= {"actor/kl_loss": _sum(kl), "actor/kl_coef": config.kl_loss_coef}
        loss = loss + config.kl_loss_coef * kl
    return loss, metrics | {"actor/loss": _sum(loss)}


def _policy_loss(
    config: ActorSettings,
    correction: RolloutCorrectionSettings | None,
    log_probs: torch.Tensor,
    micro_batch: DataProto,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The policy loss alone, with its metrics."""
    columns = micro_batch.batch
    padded = {
        name: columns.ragged(name).to_padded()
        for name in ("response_mask", "advantages", "loss_weight", "old_log_probs", "rollout_is_weights")
        if name in columns
    }
    loss_mode, instead = config.policy_loss.loss_mode, {}
    if correction is not None and correction.bypass_mode:
        loss_mode, instead = "bypass_mode", {"policy_loss": {"rollout_correction": correction}}
    function = get_policy_loss_fn(loss_mode)
    loss, metrics = function(
        old_log_prob=padded.get("old_log_probs", log_probs.detach()),
        log_prob=log_probs,
        advantages=padded["advantages"],
        response_mask=padded["response_mask"],
        loss_agg_mode=config.weight_mode,
        config=LossConfig(config, {"loss_weight": padded["loss_weight"]}, **instead),
        rollout_is_weights=padded.get("rollout_is_weights"),
        **_chance(function, micro_batch),
    )
    return loss, {name: float(value) for name, value in metrics.items()}


def _chance(function: Callable[..., Any], micro_batch: DataProto) -> dict[str, torch.Generator]:
    """For a loss that draws: a generator that is the same whenever the step is repeated, in whatever process."""
    if "generator" not in inspect.signature(function).parameters:
        return {}
    tokens = int(micro_batch.batch.ragged("response_mask").values.sum())
    seed = derive_seed(int(micro_batch.meta_info.get("global_steps", 0)), "policy loss", tokens)
    return {"generator": torch.Generator().manual_seed(seed)}


def aggregation_of(name: str) -> Aggregation:
    """verl's rule: a name that holds `max` or `min` keeps the extreme, any other the mean."""
    if "max" in name:
        return "max"
    return "min" if "min" in name else "mean"


def _distance_from_server(output: ModelOutput, micro_batch: DataProto, tokens: float) -> Metrics:
    """How far the probabilities are from those that the rollout server sampled with, under verl's names.

    Only where no `old_log_probs` stand for the weights that sampled: then the current ones are those.
    """
    columns = micro_batch.batch
    if "old_log_probs" in columns or "rollout_log_probs" not in columns or not tokens:
        return {}
    sampled = columns.ragged("response_mask").to_padded() != 0
    server = columns.ragged("rollout_log_probs").to_padded()[sampled].exp()
    distance = (output.log_probs.detach()[sampled].exp() - server).abs()
    return {
        "training/rollout_probs_diff_mean": Metric(float(distance.mean()), "mean", tokens),
        "training/rollout_probs_diff_max": Metric(float(distance.max()), "max"),
    }


def sft_loss(output: ModelOutput, micro_batch: DataProto) -> tuple[torch.Tensor, Metrics]:
    """Cross entropy of the masked tokens, each times its `loss_weight`."""
    mask, weight = (micro_batch.batch.ragged(name).to_padded() for name in ("response_mask", "loss_weight"))
    loss = -agg_loss(output.log_probs, mask, "token-mean", loss_weight=weight)
    return loss, {"loss": _sum(loss), "tokens": Metric(float(mask.sum()), "sum")}


def loss_weight(data: DataProto, loss_agg_mode: str, loss_scale_factor: float | None = None) -> Ragged:
    """The weight of each response token in the loss of this batch, which is all that one optimiser step sees.

    Rows with the same `trajectory_id` count as one where the mode counts sequences.
    """
    mask = data.batch.ragged("response_mask")
    trajectories: Any = data.non_tensor_batch.get("trajectory_id")
    row_of_token = mask.row_index
    tokens_b = torch.zeros(len(mask), dtype=torch.long).index_add_(0, row_of_token, mask.values.long())
    weight_b = row_loss_weights(
        tokens_b,
        loss_agg_mode,
        trajectory_index=None if trajectories is None else list(trajectories),
        loss_scale_factor=loss_scale_factor or float(mask.lengths.max()) if len(mask) else None,
    )
    return mask.like(weight_b[row_of_token] * mask.values)


def _sum(value: torch.Tensor) -> Metric:
    return Metric(float(value.detach()), "sum")
