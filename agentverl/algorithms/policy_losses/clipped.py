"""Losses that bound the ratio of each token: PPO with its dual clip, CISPO, and SAPO's soft gate."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.policy_losses.inputs import LossAndMetrics, LossInputs, clip_range
from agentverl.errors import BadInputError


def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347) with the dual clip of arXiv:1912.09729.

    With r = exp(log_prob - old_log_prob), the log-ratio kept within 20: max(-A r, -A clip(r, 1 - low, 1 + high)), which
    for A < 0 is bounded above by -A c.

    Args:
        config: clip_ratio, clip_ratio_low, clip_ratio_high, clip_ratio_c (c, above 1, default 3) and global_batch_info
            (keywords of `agg_loss`), as attributes or items.
        rollout_is_weights: (B, T), multiplied onto the losses.

    Returns:
        the loss, and the metrics actor/pg_clipfrac (share of tokens where the clip binds), actor/pg_clipfrac_lower
        (share where the dual clip binds) and actor/ppo_kl (mean of old_log_prob - log_prob).
    """
    low, high = clip_range(config)
    bound = setting(config, "clip_ratio_c", 3.0)
    if not bound > 1:
        raise BadInputError(f"clip_ratio_c must be greater than 1, got {bound}")
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    log_ratio, advantages = inputs.bounded_log_ratio, inputs.advantages
    ratio = torch.exp(log_ratio)
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    worse = torch.maximum(unclipped, clipped)
    dual = -advantages * bound
    losses = torch.where(advantages < 0, torch.minimum(worse, dual), worse)
    metrics = {
        "actor/pg_clipfrac": inputs.mean(clipped > unclipped),
        "actor/ppo_kl": inputs.mean(-log_ratio),
        "actor/pg_clipfrac_lower": inputs.mean((worse > dual) & (advantages < 0)),
    }
    return inputs.total(losses, loss_agg_mode, config, rollout_is_weights), metrics


def compute_policy_loss_cispo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """CISPO (MiniMax-M1, arXiv:2506.13585): REINFORCE weighted by a clipped ratio, so that no token loses its gradient.

    -sg(clip(r, 1 - low, 1 + high)) A log_prob, r as in `compute_policy_loss_vanilla`, sg without a gradient.

    Args and returns are those of `compute_policy_loss_vanilla`; clip_ratio_c is not read, actor/pg_clipfrac is the
    share of tokens whose ratio is clipped, actor/pg_clipfrac_lower is 0.
    """
    low, high = clip_range(config)
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    ratio = torch.exp(inputs.bounded_log_ratio.detach())
    clipped = torch.clamp(ratio, 1 - low, 1 + high)
    losses = -clipped * inputs.advantages * inputs.log_prob
    metrics = {
        "actor/pg_clipfrac": inputs.mean(ratio != clipped),
        "actor/ppo_kl": inputs.mean(-inputs.bounded_log_ratio),
        "actor/pg_clipfrac_lower": 0.0,
    }
    return inputs.total(losses, loss_agg_mode, config, rollout_is_weights), metrics


def compute_policy_loss_sapo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """SAPO (arXiv:2511.20347): a sigmoid takes the place of the clip, steeper where the advantage is not positive.

    -A sigmoid(tau (r - 1)) 4 / tau, r as in `compute_policy_loss_vanilla`, tau = `tau_pos` where A > 0, else `tau_neg`.
    At r = 1 the gradient is that of the policy gradient.

    Args:
        loss_agg_mode: not looked at: the loss is defined with seq-mean-token-mean.
        config: tau_pos, tau_neg and global_batch_info, as attributes or items.
        rollout_is_weights: (B, T), multiplied onto the losses.

    Returns:
        the loss, and the metrics actor/ppo_kl, actor/pg_clipfrac and actor/pg_clipfrac_lower (both 0).
    """
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    log_ratio, advantages = inputs.bounded_log_ratio, inputs.advantages
    slope = torch.where(advantages > 0, float(setting(config, "tau_pos")), float(setting(config, "tau_neg")))
    gate = torch.sigmoid(slope * (torch.exp(log_ratio) - 1)) * (4 / slope)
    metrics = {
        "actor/pg_clipfrac": 0.0,
        "actor/ppo_kl": inputs.mean(-log_ratio),
        "actor/pg_clipfrac_lower": 0.0,
    }
    return inputs.total(-advantages * gate, "seq-mean-token-mean", config, rollout_is_weights), metrics
