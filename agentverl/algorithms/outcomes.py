"""From rewards a token to one score a row, and from one advantage a row to the row's tokens."""

import torch
from torch import Tensor

from agentverl.algorithms.masked import MEAN_EPSILON, VARIANCE_EPSILON


def finite_outside_mask(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T): the values, with 0 where they are masked and not finite."""
    # Infinities and NaN spread to the sum, which is far cheaper than a look at each entry.
    if bool(values.sum().isfinite()):
        return values
    return torch.where((mask != 0) | values.isfinite(), values, 0)


def unmasked(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T): a copy of the values with 0 where they are masked, without a gradient."""
    if bool(values.sum().isfinite()):
        return values * mask if mask.dtype == values.dtype else mask.to(values.dtype).mul_(values)
    return torch.where(mask != 0, values, 0)


def outcome_scores(token_level_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """(B) float64: sum of a row's rewards over all positions; those under the mask count where they are finite."""
    scores = token_level_rewards.sum(dim=-1)
    if not bool(scores.isfinite().all()):
        scores = finite_outside_mask(token_level_rewards, response_mask).sum(dim=-1)
    return scores.double()


def spread(row_values: Tensor, response_mask: Tensor, like: Tensor) -> Tensor:
    """(B, T) of the type of `like`: each row's value (B) on its unmasked positions, 0 elsewhere."""
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    column = row_values.to(dtype)[:, None]
    if response_mask.dtype == dtype:
        return column * response_mask
    return response_mask.to(dtype).mul_(column)


def whitened(row_values: Tensor, tokens: Tensor) -> Tensor:
    """`masked_whiten` of values that are the same on all tokens of a row, from the rows alone.

    Args:
        row_values: (B) float64.
        tokens: (B) unmasked tokens a row; rows without one count nowhere.

    Returns:
        (B) float64: (value - mean) / sqrt(variance + 1e-8) over all tokens; only centred where there is just one.
    """
    count = tokens.sum()
    values = torch.where(tokens > 0, row_values, 0.0)
    centred = values - (values * tokens).sum() / (count + MEAN_EPSILON)
    if not count > 1:
        return centred
    variance = (centred**2 * tokens).sum() / (count - 1)
    return centred * torch.rsqrt(variance + VARIANCE_EPSILON)
