"""Losses whose ratio belongs to a whole row: GSPO and GMPO.

A trajectory that is split into several rows has a ratio a row, so for these two losses the split is not without effect.
"""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.masked import zero_masked
from agentverl.algorithms.policy_losses.inputs import LossAndMetrics, LossInputs, clip_range

_LOG_RATIO_CEILING = 10.0
_WEIGHT_FLOOR = 1e-10


def compute_policy_loss_gspo(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """GSPO (arXiv:2507.18071), in its form with token advantages: PPO's clip on the ratio of the whole row.

    max(-A s, -A clip(s, 1 - low, 1 + high)) with s = exp(min(log_prob - sg(log_prob) + sg(mean of log_prob -
    old_log_prob over the row), 10)): every token of a row has the row's ratio as its value and its own gradient.

    The ratio is that of a row, not of a trajectory in several rows. The paper aggregates by seq-mean-token-mean and
    clips within 3e-4 and 4e-4.

    Args and returns are those of `compute_policy_loss_vanilla`; clip_ratio_c is not read, actor/pg_clipfrac_lower is 0.
    """
    low, high = clip_range(config)
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    row_log_ratio = inputs.row_mean(inputs.log_ratio).detach()[:, None]
    log_ratio = torch.clamp(inputs.log_prob - inputs.log_prob.detach() + row_log_ratio, max=_LOG_RATIO_CEILING)
    ratio = torch.exp(log_ratio)
    unclipped = -inputs.advantages * ratio
    clipped = -inputs.advantages * torch.clamp(ratio, 1 - low, 1 + high)
    metrics = {
        "actor/pg_clipfrac": inputs.mean(clipped > unclipped),
        "actor/ppo_kl": inputs.mean(-inputs.log_ratio),
        "actor/pg_clipfrac_lower": 0.0,
    }
    return inputs.total(torch.maximum(unclipped, clipped), loss_agg_mode, config, rollout_is_weights), metrics


def compute_policy_loss_geo_mean(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """GMPO (arXiv:2507.20673): the geometric mean of a row's ratios, each clipped before, times the row's advantage.

    -mean(A) exp(mean of the smaller of d and clip(d, -low, high), seen in the direction of A) for each row, d =
    log_prob - old_log_prob; the mean over rows with a token. The geometric mean of a row's `rollout_is_weights`, where
    there are any, multiplies its loss.

    The ratio is that of a row, not of a trajectory in several rows.

    Args:
        loss_agg_mode: not looked at: the loss is defined with seq-mean-token-mean.
        config: clip_ratio, clip_ratio_low, clip_ratio_high (bounds of log-ratios) and global_batch_info.

    Returns:
        the loss, and the metrics actor/pg_clipfrac (share of tokens that are clipped where the advantage is positive),
        actor/pg_clipfrac_lower (where it is negative) and actor/ppo_kl.
    """
    low, high = clip_range(config)
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    log_ratio, sign = inputs.log_ratio, torch.sign(inputs.advantages)
    clipped_log_ratio = torch.clamp(log_ratio, -low, high)
    smaller = sign * torch.minimum(sign * log_ratio, sign * clipped_log_ratio)
    row_losses = -inputs.row_mean(inputs.advantages) * torch.exp(inputs.row_mean(smaller))
    if rollout_is_weights is not None:
        weights = zero_masked(rollout_is_weights, inputs.mask)
        row_losses = row_losses * torch.exp(inputs.row_mean(torch.log(weights + _WEIGHT_FLOOR)))
    clipped = log_ratio != clipped_log_ratio
    metrics = {
        "actor/pg_clipfrac": inputs.mean(clipped & (inputs.advantages > 0)),
        "actor/ppo_kl": inputs.mean(-log_ratio),
        "actor/pg_clipfrac_lower": inputs.mean(clipped & (inputs.advantages < 0)),
    }
    losses = row_losses[:, None].expand_as(log_ratio)
    return inputs.total(losses, "seq-mean-token-mean", config), metrics
