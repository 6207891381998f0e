"""What all policy losses share: clean inputs, the bounds of the ratio, the way from a loss a token to one number."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.aggregation import agg_loss
from agentverl.algorithms.kl import LOG_RATIO_BOUND
from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.masked import masked_mean, zero_masked
from agentverl.errors import BadInputError

LossAndMetrics = tuple[Tensor, dict[str, float]]


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What every policy loss starts from, (B, T) each, with zeros under the mask."""

    old_log_prob: Tensor
    log_prob: Tensor
    advantages: Tensor
    mask: Tensor

    @classmethod
    def clean(cls, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, mask: Tensor) -> "LossInputs":
        """Zero what stands under the mask before anything is computed from it."""
        return cls(zero_masked(old_log_prob, mask), zero_masked(log_prob, mask), zero_masked(advantages, mask), mask)

    @property
    def log_ratio(self) -> Tensor:
        """log_prob - old_log_prob, not bounded."""
        return self.log_prob - self.old_log_prob

    @property
    def bounded_log_ratio(self) -> Tensor:
        return torch.clamp(self.log_ratio, min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)

    def mean(self, values: Tensor) -> float:
        """The mean over unmasked tokens, for metrics."""
        return float(masked_mean(values.detach().float(), self.mask))

    def row_mean(self, values: Tensor) -> Tensor:
        """(B) the mean over each row's unmasked tokens; 0 in a row without one."""
        return masked_mean(values, self.mask, axis=-1)

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


def policy_loss_setting(config: Any, name: str) -> Any:
    """A key of `policy_loss.*`."""
    return setting(setting(config, "policy_loss"), name)
