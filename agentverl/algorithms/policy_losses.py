"""Losses of the policy: pure functions of log-probabilities and advantages, all (B, T)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.aggregation import agg_loss
from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.masked import masked_mean, zero_masked
from agentverl.errors import BadInputError

LOG_RATIO_BOUND = 20.0
"""Log-ratios are kept within this before they are exponentiated."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What every policy loss starts from, (B, T) each, with zeros under the mask."""

    log_prob: Tensor
    log_ratio: Tensor
    """log_prob - old_log_prob, not bounded."""
    advantages: Tensor
    mask: Tensor

    @classmethod
    def clean(cls, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, mask: Tensor) -> "LossInputs":
        """Zero what stands under the mask before anything is computed from it."""
        log_prob = zero_masked(log_prob, mask)
        return cls(log_prob, log_prob - zero_masked(old_log_prob, mask), zero_masked(advantages, mask), mask)

    @property
    def bounded_log_ratio(self) -> Tensor:
        return torch.clamp(self.log_ratio, min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)

    def mean(self, values: Tensor) -> float:
        """The mean over unmasked tokens, for metrics."""
        return float(masked_mean(values.detach(), self.mask))

    def total(
        self, losses: Tensor, loss_agg_mode: str, config: Any, rollout_is_weights: Tensor | None = None
    ) -> Tensor:
        """The losses a token, times the weights that correct for the rollout policy, as one number."""
        if rollout_is_weights is not None:
            losses = losses * zero_masked(rollout_is_weights, self.mask)
        return agg_loss(losses, self.mask, loss_agg_mode, **(setting(config, "global_batch_info", None) or {}))


def clip_range(config: Any) -> tuple[float, float]:
    """How far below and above 1 the ratio may go: `clip_ratio_low` and `clip_ratio_high`, else `clip_ratio`."""
    low, high = setting(config, "clip_ratio_low", None), setting(config, "clip_ratio_high", None)
    clip_ratio = setting(config, "clip_ratio", None) if low is None or high is None else None
    low, high = clip_ratio if low is None else low, clip_ratio if high is None else high
    if low is None or high is None:
        raise BadInputError("the loss needs clip_ratio, or clip_ratio_low and clip_ratio_high")
    return low, high


def compute_policy_loss_vanilla(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
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
        "actor/pg_clipfrac": inputs.mean((clipped > unclipped).float()),
        "actor/ppo_kl": inputs.mean(-log_ratio),
        "actor/pg_clipfrac_lower": inputs.mean(((worse > dual) & (advantages < 0)).float()),
    }
    return inputs.total(losses, loss_agg_mode, config, rollout_is_weights), metrics
