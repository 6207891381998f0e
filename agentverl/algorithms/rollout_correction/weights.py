"""Importance weights: how much more likely the training policy finds what the rollout policy sampled."""

import math

import torch
from torch import Tensor

from agentverl.algorithms.kl import LOG_RATIO_BOUND
from agentverl.algorithms.masked import masked_mean, masked_sum, zero_masked
from agentverl.errors import BadInputError
from agentverl.settings.correction_bounds import IS_LEVELS, Bounds, Spec, weight_bounds

Metrics = dict[str, float]


@torch.no_grad()
def compute_rollout_correction_weights(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: Spec = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[Tensor, Metrics]:
    """exp(log_ratio) of a token or of its whole row, bounded and without a gradient, (B, T), 0 under the mask.

    The log-ratio, log pi_train - log pi_rollout, is kept within 20 first.

    Args:
        rollout_is: "token", or "sequence": exp of the row's sum at each of its tokens. Each row of a split trajectory
            has its own.
        rollout_is_threshold: a number cuts larger weights to it (truncated importance sampling, Espeholt et al. 2018,
            arXiv:1802.01561); "lower_upper" makes those outside 0 (IcePop, arXiv:2510.18855).
        rollout_is_batch_normalize: divide by the mean weight: of all tokens, or of all rows with a token.

    Returns:
        the weights, and metrics `rollout_is_*`: of the weights before normalisation, whose shares beyond the bounds are
        of those before any bound.

    Raises:
        BadInputError: an unknown level or a threshold that is none.
    """
    if rollout_is not in IS_LEVELS:
        raise BadInputError(f"Invalid rollout_is: {rollout_is}. Must be one of {', '.join(IS_LEVELS)}")
    bounds = weight_bounds(rollout_is_threshold)
    log_ratio = zero_masked(log_ratio, response_mask)
    row_log_ratio = masked_sum(log_ratio, response_mask, axis=-1)[:, None]
    exponent = log_ratio if rollout_is == "token" else row_log_ratio.expand_as(log_ratio)
    raw = zero_masked(torch.exp(exponent.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)), response_mask)
    if bounds.lower is None:
        weights = raw.clamp(max=bounds.upper)
    else:
        weights = torch.where((raw >= bounds.lower) & (raw <= bounds.upper), raw, 0.0)
    metrics = _weight_metrics(weights, raw, response_mask, bounds)
    if rollout_is == "sequence":
        metrics |= _row_extremes(row_log_ratio, bounds)
    if rollout_is_batch_normalize:
        factor = _normaliser(weights, response_mask, rollout_is)
        weights, metrics["rollout_is_batch_norm_factor"] = weights / factor, factor
    return weights, metrics


def _normaliser(weights: Tensor, mask: Tensor, rollout_is: str) -> float:
    if rollout_is == "token":
        mean = float(masked_mean(weights, mask))
    else:
        mean = float(masked_mean(masked_mean(weights, mask, axis=-1), mask.sum(dim=-1) > 0))
    return mean if mean > 1e-8 else 1.0


def _weight_metrics(weights: Tensor, raw: Tensor, mask: Tensor, bounds: Bounds) -> Metrics:
    """What holds at both levels; the shares beyond the bounds are of tokens."""
    lower = _lower(bounds)
    held = weights[mask != 0]
    mean = masked_mean(weights, mask)
    deviation = masked_mean((weights - mean).square(), mask).sqrt() if len(held) > 1 else 0.0
    row_means, raw_row_means = masked_mean(weights, mask, axis=-1), masked_mean(raw, mask, axis=-1)
    metrics = {
        "mean": mean,
        "ratio_fraction_high": masked_mean((raw > bounds.upper).float(), mask),
        "ratio_fraction_low": masked_mean((raw < lower).float(), mask),
        "max": held.max(),
        "min": held.min(),
        "std": deviation,
        "eff_sample_size": 1 / masked_mean((weights / (mean + 1e-8)).square(), mask),
        "seq_mean": row_means.mean(),
        "seq_std": row_means.std() if len(row_means) > 1 else 0.0,
        "seq_max": row_means.max(),
        "seq_min": row_means.min(),
        "seq_max_deviation": (row_means - 1).abs().max(),
        "seq_fraction_high": (raw_row_means > bounds.upper).float().mean(),
        "seq_fraction_low": (raw_row_means < lower).float().mean(),
    }
    if bounds.lower is not None:
        metrics["oob_ratio"] = masked_mean(((raw < bounds.lower) | (raw > bounds.upper)).float(), mask)
    return {f"rollout_is_{name}": float(value) for name, value in metrics.items()}


def _row_extremes(row_log_ratio: Tensor, bounds: Bounds) -> Metrics:
    """At the level of sequences, extremes and shares are of rows, before any bound."""
    return {
        "rollout_is_max": float(row_log_ratio.max().clamp(max=LOG_RATIO_BOUND).exp()),
        "rollout_is_min": float(row_log_ratio.min().exp()),
        "rollout_is_ratio_fraction_high": float((row_log_ratio > math.log(bounds.upper)).float().mean()),
        "rollout_is_ratio_fraction_low": float((row_log_ratio < math.log(_lower(bounds))).float().mean()),
    }


def _lower(bounds: Bounds) -> float:
    return 1 / bounds.upper if bounds.lower is None else bounds.lower
