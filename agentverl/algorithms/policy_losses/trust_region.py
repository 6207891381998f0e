"""DPPO: a token teaches only while the policy is near the one that sampled it, measured on its probability."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.policy_losses.inputs import LossAndMetrics, LossInputs, clip_range

_EPSILON = 1e-8


def compute_policy_loss_dppo_tv(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """DPPO with total variation (arXiv:2602.04879): -A sg(min(r, c)) log_prob for each token that may still move.

    With p and q the token's probability now and when it was sampled, it may while p - q <= high where A > 0, and while
    p - q >= -low elsewhere. r as in `compute_policy_loss_vanilla`.

    Args:
        config: clip_ratio, clip_ratio_low, clip_ratio_high (bounds of the difference of probabilities), clip_ratio_c
            (c; the paper has 20) and global_batch_info, as attributes or items.
        rollout_is_weights: (B, T), multiplied onto the losses.

    Returns:
        the loss, and the metrics actor/pg_clipfrac (share of tokens that may not move), actor/pg_clipfrac_lower (share
        with A < 0 whose ratio is cut to c) and actor/ppo_kl.
    """
    low, high = clip_range(config)
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    moved = torch.exp(inputs.log_prob.detach()) - torch.exp(inputs.old_log_prob)
    return _within(inputs, moved <= high, moved >= -low, loss_agg_mode, config, rollout_is_weights)


def compute_policy_loss_dppo_kl(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """DPPO with KL (arXiv:2602.04879): as `compute_policy_loss_dppo_tv`, the distance being KL(q || p) of one token.

    Each token against all others: q log(q / p) + (1 - q) log((1 - q) / (1 - p)), with 1e-8 inside the logarithms. A
    token may move while that is at most `high` (A > 0) or `low`, and always back towards where it was sampled.
    """
    low, high = clip_range(config)
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    now, then = torch.exp(inputs.log_prob.detach()), torch.exp(inputs.old_log_prob)
    divergence = then * torch.log((then + _EPSILON) / (now + _EPSILON))
    # A log-probability of 0 may be rounded to a little above.
    others_now, others_then = (1 - now).clamp(min=0), (1 - then).clamp(min=0)
    divergence = divergence + others_then * torch.log((others_then + _EPSILON) / (others_now + _EPSILON))
    up = (divergence <= high) | (now <= then)
    down = (divergence <= low) | (now >= then)
    return _within(inputs, up, down, loss_agg_mode, config, rollout_is_weights)


def _within(
    inputs: LossInputs, up: Tensor, down: Tensor, loss_agg_mode: str, config: Any, rollout_is_weights: Tensor | None
) -> LossAndMetrics:
    """The loss of the tokens that may move the way their advantage points: `up` where it is positive, else `down`."""
    allowed = torch.where(inputs.advantages > 0, up, down)
    bound = float(setting(config, "clip_ratio_c", 20.0))
    ratio = torch.exp(inputs.bounded_log_ratio.detach())
    weight = torch.clamp(ratio, max=bound) * allowed
    metrics = {
        "actor/pg_clipfrac": inputs.mean(~allowed),
        "actor/ppo_kl": inputs.mean(-inputs.bounded_log_ratio),
        "actor/pg_clipfrac_lower": inputs.mean((ratio > bound) & (inputs.advantages < 0)),
    }
    losses = -inputs.advantages * weight * inputs.log_prob
    return inputs.total(losses, loss_agg_mode, config, rollout_is_weights), metrics
