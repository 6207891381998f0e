"""Rejection: tokens or whole rows whose sampling policy is too far from the training policy carry no loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentverl.algorithms.kl import LOG_RATIO_BOUND
from agentverl.algorithms.masked import masked_mean, masked_sum, zero_masked
from agentverl.algorithms.rollout_correction.weights import Metrics
from agentverl.settings.correction_bounds import Bounds, Spec, rejection_bounds


@dataclass(frozen=True, slots=True)
class _Statistic:
    """What one option measures."""

    tokens: Tensor
    """(B, T) the divergence of each token, or of its row."""
    rows: Tensor
    """(B) the divergence of each row; for an option of tokens their mean."""
    by_row: bool


@torch.no_grad()
def compute_rollout_rejection_mask(
    log_ratio: Tensor, response_mask: Tensor, rollout_rs: str = "token_k1", rollout_rs_threshold: Spec | None = None
) -> tuple[Tensor, Metrics]:
    """The mask without what lies beyond the threshold of any option, (B, T).

    With d = log pi_train - log pi_rollout of a token, kept within 20: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d.
    `token_k*` looks at each token; `seq_sum_k*`, `seq_mean_k*` and `seq_max_k*` at the sum, mean or largest over a row,
    of which then all or nothing stays (`seq_mean_k1` is the geometric mean of the ratios). A trajectory in several rows
    is judged row by row.

    Args:
        rollout_rs: options, with commas between; all must be content.
        rollout_rs_threshold: one for all, or as many with commas between: for k1 bounds of a ratio, `lower_upper` or
            `upper` alone (1 / upper to upper); for k2 and k3 an upper bound.

    Returns:
        the mask, and metrics `rollout_rs_*`, those of each option before the others are looked at.

    Raises:
        BadInputError: an unknown option or a threshold that is none.
    """
    bounds_of = rejection_bounds(rollout_rs, rollout_rs_threshold)
    ratio = zero_masked(log_ratio, response_mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    inside, has_token = response_mask != 0, response_mask.sum(dim=-1) > 0
    kept = torch.ones_like(inside)
    metrics: Metrics = {}
    for option, bounds in bounds_of.items():
        statistic = _statistic(option, ratio, response_mask)
        keeps = statistic.tokens <= bounds.upper
        if bounds.lower is not None:
            keeps &= statistic.tokens >= bounds.lower
        kept &= keeps
        found = _option_metrics(statistic, response_mask, bounds)
        found["masked_fraction"] = float(masked_mean((~keeps).float(), response_mask))
        found["seq_masked_fraction"] = float(masked_mean((~keeps & inside).any(dim=-1).float(), has_token))
        metrics |= {f"rollout_rs_{option}_{name}": value for name, value in found.items()}
    metrics["rollout_rs_masked_fraction"] = float(masked_mean((~kept).float(), response_mask))
    metrics["rollout_rs_seq_masked_fraction"] = float((~kept & inside).any(dim=-1).float().mean())
    return response_mask * kept.to(response_mask.dtype), metrics


def _statistic(option: str, ratio: Tensor, mask: Tensor) -> _Statistic:
    level, _, estimator = option.rpartition("_")
    if estimator == "k1":
        tokens = -ratio
    elif estimator == "k2":
        tokens = 0.5 * ratio.square()
    else:
        tokens = torch.exp(ratio) - 1 - ratio
    if level == "seq_sum":
        rows = masked_sum(tokens, mask, axis=-1)
    elif level == "seq_max":
        # k2 and k3 are never negative, so the zeros under the mask are never the largest.
        rows = zero_masked(tokens, mask).amax(dim=-1)
    else:
        rows = masked_mean(tokens, mask, axis=-1)
    by_row = level != "token"
    return _Statistic(rows[:, None].expand_as(tokens) if by_row else tokens, rows, by_row)


def _option_metrics(statistic: _Statistic, mask: Tensor, bounds: Bounds) -> Metrics:
    inside = mask != 0
    rows = statistic.rows[inside.any(dim=-1)]
    measured = rows if statistic.by_row else statistic.tokens[inside]
    bounded = statistic.tokens.clamp(0.0 if bounds.lower is None else bounds.lower, bounds.upper)
    variance = masked_mean((bounded - masked_mean(bounded, mask)).square(), mask)
    metrics = {
        "mean": masked_mean(statistic.tokens, mask),
        "max": measured.max(),
        "min": measured.min(),
        "fraction_high": (measured > bounds.upper).float().mean(),
        "fraction_low": 0.0 if bounds.lower is None else (measured < bounds.lower).float().mean(),
        "std": variance.sqrt() if inside.sum() > 1 else 0.0,
        "seq_mean": rows.mean(),
        "seq_std": rows.std() if len(rows) > 1 else 0.0,
        "seq_max": rows.max(),
        "seq_min": rows.min(),
        "seq_max_deviation": rows.abs().max(),
        "seq_fraction_high": (rows > bounds.upper).float().mean(),
    }
    if bounds.lower is not None:
        metrics["seq_fraction_low"] = (rows < bounds.lower).float().mean()
    return {name: float(value) for name, value in metrics.items()}
