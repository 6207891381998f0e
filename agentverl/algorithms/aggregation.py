"""From a loss a token to one number, and the weights by which engines do the same without knowing the batch."""

from typing import Literal, get_args

import torch
from torch import Tensor

from agentverl.algorithms.groups import Index, number_keys
from agentverl.algorithms.masked import MEAN_EPSILON, masked_sum
from agentverl.errors import BadInputError

LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES: tuple[str, ...] = get_args(LossAggMode)

Count = int | float | Tensor


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: Count | None = None,
    global_batch_size: Count | None = None,
    loss_scale_factor: float | None = None,
    loss_weight: Tensor | None = None,
) -> Tensor:
    """Sum up a loss matrix (B, T); infinities and NaN under the mask count nowhere, an all-masked batch gives 0.

    With m the mask, N = `batch_num_tokens` or the unmasked tokens, S = `global_batch_size` or the rows with any:

    - token-mean: sum(l m) / N
    - token-sum: sum(l m)
    - seq-mean-token-sum: sum(l m) / S
    - seq-mean-token-mean: sum over rows of (sum(l m) / sum(m)) / S
    - seq-mean-token-sum-norm: sum(l m) / S / (`loss_scale_factor` or T)

    Each times `dp_size`, because data-parallel ranks average their gradients. With global counts, the sum over
    micro-batches is the loss of the whole batch.

    Args:
        loss_weight: (B, T), what `loss_weights` computed for the whole batch: the result is sum(l m weight) * dp_size
            and the mode is not looked at.

    Raises:
        BadInputError: an unknown mode, or `dp_size` above 1 without the global count that the mode divides by.
    """
    if loss_weight is not None:
        return masked_sum(loss_mat * torch.where(loss_mask != 0, loss_weight, 0), (loss_mask != 0)) * dp_size
    _check_mode(loss_agg_mode)
    if loss_agg_mode == "token-sum":
        return masked_sum(loss_mat, loss_mask) * dp_size
    if loss_agg_mode == "token-mean":
        tokens = _global_count("batch_num_tokens", batch_num_tokens, dp_size, loss_mask.sum())
        return _divided(masked_sum(loss_mat, loss_mask), tokens) * dp_size
    row_sums = masked_sum(loss_mat, loss_mask, axis=-1)
    row_tokens = loss_mask.sum(dim=-1)
    rows = _global_count("global_batch_size", global_batch_size, dp_size, (row_tokens > 0).sum())
    if loss_agg_mode == "seq-mean-token-mean":
        row_sums = row_sums / (row_tokens + MEAN_EPSILON)
    loss = _divided(row_sums.sum(), rows) * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        loss = loss / _scale(loss_scale_factor, loss_mask.shape[-1])
    return loss


def row_loss_weights(
    row_tokens: Tensor,
    loss_agg_mode: str,
    trajectory_index: Index | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """(B) float32: the weight that the loss of each unmasked token of a row has in the loss of the whole batch.

    Where a mode of `agg_loss` counts rows it counts trajectories here, so the split of a trajectory into sequences
    changes nothing. Trajectories without a token count nowhere.

    Args:
        row_tokens: (B) unmasked tokens of each row, of the whole mini-batch (all that one optimiser step sees).
        trajectory_index: the trajectory of each row; without it each row is one.
        loss_scale_factor: what seq-mean-token-sum-norm divides by, usually the longest response allowed.

    Raises:
        BadInputError: an unknown mode, an index that does not fit, or seq-mean-token-sum-norm without its factor.
    """
    _check_mode(loss_agg_mode)
    tokens = row_tokens.double()
    if loss_agg_mode == "token-sum":
        return torch.ones_like(tokens, dtype=torch.float32)
    if loss_agg_mode == "token-mean":
        return (torch.ones_like(tokens) / tokens.sum().clamp(min=1)).float()
    count = len(tokens)
    index = torch.arange(count) if trajectory_index is None else trajectory_index
    trajectory_of_row, trajectories = number_keys(index, count)
    trajectory_of_row = trajectory_of_row.to(tokens.device)
    trajectory_tokens = tokens.new_zeros(trajectories).index_add_(0, trajectory_of_row, tokens)
    weights = torch.ones_like(tokens) / (trajectory_tokens > 0).sum().clamp(min=1)
    if loss_agg_mode == "seq-mean-token-mean":
        weights = weights / (trajectory_tokens + MEAN_EPSILON)[trajectory_of_row].clamp(min=MEAN_EPSILON)
        weights = torch.where(trajectory_tokens[trajectory_of_row] > 0, weights, 0.0)
    if loss_agg_mode == "seq-mean-token-sum-norm":
        weights = weights / _scale(loss_scale_factor, None)
    return weights.float()


def loss_weights(
    response_mask: Tensor,
    loss_agg_mode: str,
    trajectory_index: Index | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """(B, T) float32: `row_loss_weights` on the unmasked positions of a whole mini-batch, 0 elsewhere.

    sum(loss * weights) is `agg_loss` of the batch in which each trajectory is one row; without `loss_scale_factor`,
    seq-mean-token-sum-norm divides by T as `agg_loss` does.
    """
    scale = response_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor
    rows = row_loss_weights(response_mask.sum(dim=-1), loss_agg_mode, trajectory_index, scale)
    return rows[:, None] * response_mask.float()


def _check_mode(loss_agg_mode: str) -> None:
    if loss_agg_mode not in MODES:
        raise BadInputError(f"Invalid loss_agg_mode: {loss_agg_mode!r}; it must be one of {', '.join(MODES)}")


def _global_count(name: str, given: Count | None, dp_size: int, local: Tensor) -> Count:
    if given is not None:
        return given
    if dp_size > 1:
        raise BadInputError(f"(global) {name} is required when dp_size > 1, got dp_size={dp_size} without it")
    return local


def _divided(total: Tensor, count: Count) -> Tensor:
    return total / count if count > 0 else total * 0.0


def _scale(loss_scale_factor: float | None, default: int | None) -> float:
    scale = default if loss_scale_factor is None else loss_scale_factor
    if not scale or scale < 0:
        raise BadInputError(f"seq-mean-token-sum-norm needs a positive loss_scale_factor, got {scale}")
    return scale
