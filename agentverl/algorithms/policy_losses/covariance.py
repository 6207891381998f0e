"""Losses that keep entropy up by holding back the few tokens whose log-probability covaries most with the advantage.

Both come from "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models" (arXiv:2505.22617). They
choose among the tokens that they are given, so how a batch is cut into micro-batches is not without effect.
"""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.masked import masked_mean, zero_masked
from agentverl.algorithms.policy_losses.inputs import LossAndMetrics, LossInputs, clip_range, policy_loss_setting


def compute_policy_loss_clip_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> LossAndMetrics:
    """Clip-Cov: PPO's clipped loss, without a loss for a few tokens drawn among those of high covariance.

    max(-A r, -A clip(r, 1 - low, 1 + high)) with r = exp(log_prob - old_log_prob), not bounded. Of the tokens whose
    (A - mean A) (log_prob - mean log_prob) lies strictly between `clip_cov_lb` and `clip_cov_ub` and whose ratio is not
    clipped, `clip_cov_ratio` of all tokens, at least one, are drawn.

    Args:
        config: clip_ratio, clip_ratio_low, clip_ratio_high, policy_loss.clip_cov_ratio, .clip_cov_lb, .clip_cov_ub and
            global_batch_info, as attributes or items.
        rollout_is_weights: (B, T), multiplied onto the losses.
        generator: draws the tokens; without it the global one of the CPU.

    Returns:
        the loss, and the metrics actor/pg_clipfrac (share of tokens that were drawn) and actor/ppo_kl.
    """
    low, high = clip_range(config)
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    unclipped = -inputs.advantages * torch.exp(inputs.log_ratio)
    clipped = -inputs.advantages * torch.clamp(torch.exp(inputs.log_ratio), 1 - low, 1 + high)
    covariance = _covariance(inputs)
    candidates = (covariance > policy_loss_setting(config, "clip_cov_lb")) & (
        covariance < policy_loss_setting(config, "clip_cov_ub")
    )
    candidates &= (inputs.mask != 0) & (clipped <= unclipped)
    count = max(int(policy_loss_setting(config, "clip_cov_ratio") * inputs.mask.sum()), 1)
    drawn = torch.zeros_like(candidates)
    places = candidates.nonzero()
    if len(places):
        chosen = places[torch.randperm(len(places), generator=generator)[:count].to(places.device)]
        drawn[chosen[:, 0], chosen[:, 1]] = True
    losses = torch.where(drawn, 0.0, torch.maximum(unclipped, clipped))
    metrics = {"actor/pg_clipfrac": inputs.mean(drawn), "actor/ppo_kl": inputs.mean(-inputs.log_ratio)}
    return inputs.total(losses, loss_agg_mode, config, rollout_is_weights), metrics


def compute_policy_loss_kl_cov(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """KL-Cov: the unclipped loss -A r, plus a KL term for the few tokens of highest covariance.

    Of all tokens the share `kl_cov_ratio`, at least one, with the highest (A - mean A) (log_prob - mean log_prob) pay
    `ppo_kl_coef` |log_prob - old_log_prob|. r = exp(log_prob - old_log_prob), not bounded.

    Args:
        config: policy_loss.kl_cov_ratio, policy_loss.ppo_kl_coef and global_batch_info, as attributes or items.
        rollout_is_weights: (B, T), multiplied onto the losses.

    Returns:
        the loss, and the metric actor/ppo_kl, here the mean of |log_prob - old_log_prob|.
    """
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    distance = inputs.log_ratio.abs()
    losses = -inputs.advantages * torch.exp(inputs.log_ratio)
    tokens = int((inputs.mask != 0).sum())
    if tokens:
        count = max(1, int(tokens * policy_loss_setting(config, "kl_cov_ratio")))
        covariance = torch.where(inputs.mask != 0, _covariance(inputs), -torch.inf)
        highest = torch.zeros_like(covariance, dtype=torch.bool).flatten()
        highest[torch.topk(covariance.flatten(), min(count, tokens)).indices] = True
        penalty = policy_loss_setting(config, "ppo_kl_coef") * distance
        losses = losses + torch.where(highest.view_as(penalty), penalty, 0.0)
    return inputs.total(losses, loss_agg_mode, config, rollout_is_weights), {"actor/ppo_kl": inputs.mean(distance)}


@torch.no_grad()
def _covariance(inputs: LossInputs) -> Tensor:
    """(B, T) each unmasked token's share in the covariance of advantage and log-probability; 0 elsewhere."""
    advantages = inputs.advantages - masked_mean(inputs.advantages, inputs.mask)
    log_prob = inputs.log_prob - masked_mean(inputs.log_prob, inputs.mask)
    return zero_masked(advantages * log_prob, inputs.mask)
