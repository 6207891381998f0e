"""How far the policy is from the reference: estimators, the penalty in the reward, the loss, and its coefficient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.aggregation import agg_loss
from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.masked import masked_mean, zero_masked
from agentverl.errors import BadInputError

LOG_RATIO_BOUND = 20.0
"""Log-ratios are kept within this before they are exponentiated."""


class UnknownKLError(BadInputError, NotImplementedError):
    """A KL estimator that does not exist; verl raises NotImplementedError."""


def _k1(log_ratio: Tensor) -> Tensor:
    return log_ratio


def _k2(log_ratio: Tensor) -> Tensor:
    return 0.5 * log_ratio.square()


def _k3(log_ratio: Tensor) -> Tensor:
    inverse = torch.clamp(-log_ratio, min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)
    return torch.clamp(torch.exp(inverse) - inverse - 1, min=-10, max=10)


_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": torch.abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """An estimate of KL(policy || reference) at each token (any shape), with d = logprob - ref_logprob.

    - kl, k1: d, unbiased
    - abs: |d|
    - mse, k2: d^2 / 2
    - low_var_kl, k3: exp(-d) + d - 1, -d kept within 20 and the result within 10 (Schulman,
      http://joschu.net/blog/kl-approx.html)

    With a `+` at the end the value is the same and the gradient is that of k2, whose expectation is the KL's own.

    Raises:
        UnknownKLError: any other name; `full` needs logits.
    """
    name = kl_penalty.removesuffix("+")
    if name not in _ESTIMATORS:
        hint = "; the full KL needs logits and is not offered" if name == "full" else ""
        raise UnknownKLError(
            f"unknown KL estimator {kl_penalty!r}{hint}. It must be one of {', '.join(_ESTIMATORS)}, or one with a +"
        )
    log_ratio = logprob - ref_logprob
    estimate = _ESTIMATORS[name](log_ratio)
    if name == kl_penalty:
        return estimate
    proxy = _k2(log_ratio)
    return proxy - proxy.detach() + estimate.detach()


def compute_kl_loss(
    log_prob: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    kl_loss_type: str = "low_var_kl",
    loss_agg_mode: str = "token-mean",
    **global_batch_info: Any,
) -> Tensor:
    """The KL of the unmasked tokens (B, T) as one loss, aggregated as the policy's own; see `agg_loss`."""
    kl = kl_penalty(zero_masked(log_prob, response_mask), zero_masked(ref_log_prob, response_mask), kl_loss_type)
    return agg_loss(kl, response_mask, loss_agg_mode, **global_batch_info)


def compute_rewards(token_level_scores: Tensor, old_log_prob: Tensor, ref_log_prob: Tensor, kl_ratio: float) -> Tensor:
    """scores - kl_ratio * (old_log_prob - ref_log_prob), all (B, T)."""
    return token_level_scores - (old_log_prob - ref_log_prob) * kl_ratio


@torch.no_grad()
def kl_in_reward(
    token_level_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    kl_penalty_type: str = "kl",
) -> tuple[Tensor, float]:
    """Take the KL from the reward of every unmasked token (B, T).

    Returns:
        token-level rewards, and the KL that `KLController.update` expects: the mean over rows of their mean over tokens
        (rows without a token left out).
    """
    kl = kl_penalty(
        zero_masked(old_log_probs, response_mask), zero_masked(ref_log_prob, response_mask), kl_penalty_type
    )
    kl = zero_masked(kl, response_mask)
    per_row = masked_mean(kl, response_mask, axis=-1)
    current = masked_mean(per_row, response_mask.sum(dim=-1) > 0)
    return token_level_scores - kl_coef * kl, float(current)


class FixedKLController:
    """A coefficient that stays."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing changes."""


class AdaptiveKLController:
    """A coefficient that follows the KL towards a target (Ziegler et al. 2019, arXiv:1909.08593, section 2.2).

    Each update multiplies it by 1 + clip(kl / target - 1, -0.2, 0.2) * n_steps / horizon.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        self.value = init_kl_coef
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Take in the KL of a batch of `n_steps` samples."""
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon


KLController = FixedKLController | AdaptiveKLController


def get_kl_controller(kl_ctrl: Any) -> KLController:
    """The controller that `algorithm.kl_ctrl` (type, kl_coef, and horizon and target_kl if adaptive) describes."""
    kind = setting(kl_ctrl, "type", "fixed")
    if kind == "fixed":
        return FixedKLController(setting(kl_ctrl, "kl_coef"))
    if kind != "adaptive":
        raise BadInputError(f"kl_ctrl.type must be fixed or adaptive, got {kind!r}")
    horizon = setting(kl_ctrl, "horizon")
    if not horizon > 0:
        raise BadInputError(f"kl_ctrl.horizon must be larger than 0, got {horizon}")
    return AdaptiveKLController(setting(kl_ctrl, "kl_coef"), setting(kl_ctrl, "target_kl"), horizon)
