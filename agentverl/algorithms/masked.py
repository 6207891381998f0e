"""Sums, means, variances and whitening over the unmasked entries of a tensor.

A mask is any tensor of the values' shape (or one that broadcasts to it); entries where it is 0 do not count, whatever
they hold: infinities and NaN under the mask reach neither a result nor a gradient.
"""

import torch
from torch import Tensor

MEAN_EPSILON = 1e-8
"""Added to the number of entries by `masked_mean`, so that no entries give 0."""
VARIANCE_EPSILON = 1e-8
"""Added to the variance that `masked_whiten` divides by."""


def zero_masked(values: Tensor, mask: Tensor) -> Tensor:
    """The values, with 0 (and a gradient of 0) where `mask` is 0.

    Applied to the inputs of a formula, before exponentials and logarithms: applied after them, the gradient of a masked
    infinity would be 0 * inf.
    """
    return torch.where(mask != 0, values, torch.zeros((), dtype=values.dtype, device=values.device))


def masked_sum(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Sum of values * mask over `axis` (None: all)."""
    weighted = zero_masked(values, mask) * mask
    return weighted.sum() if axis is None else weighted.sum(dim=axis)


def masked_mean(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Sum of values * mask over `axis` (None: all), divided by the sum of the mask; 0 where nothing is unmasked."""
    mask = mask.expand_as(values)
    count = mask.sum() if axis is None else mask.sum(dim=axis)
    return masked_sum(values, mask, axis) / (count + MEAN_EPSILON)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance over all unmasked entries, with Bessel's correction n / (n - 1) if `unbiased`.

    Raises:
        ValueError: no unmasked entry, or a single one with the correction.
    """
    deviations = zero_masked(values, mask) - masked_mean(values, mask)
    variance = masked_mean(deviations**2, mask)
    if not unbiased:
        return variance
    count = mask.expand_as(values).sum()
    if count <= 1:
        raise ValueError(f"a variance needs at least two unmasked values, the mask sums to {count.item():g}")
    return variance * count / (count - 1)


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """(values - mean) / sqrt(variance + 1e-8) of the unmasked entries, 0 elsewhere; plus the mean if not `shift_mean`.

    With fewer than two unmasked entries there is no variance: they are centred and not scaled.
    """
    kept, count = mask != 0, mask.expand_as(values).sum()
    clean = torch.where(kept, values, 0)
    mean = (clean * mask).sum() / (count + MEAN_EPSILON)
    whitened = torch.where(kept, clean - mean, 0)
    if count > 1:
        variance = (whitened**2 * mask).sum() / (count + MEAN_EPSILON) * count / (count - 1)
        whitened = whitened * torch.rsqrt(variance + VARIANCE_EPSILON)
    return whitened if shift_mean else torch.where(kept, whitened + mean, 0)


def get_response_mask(response_id: Tensor, eos_token: int | list[int] = 2, dtype: torch.dtype = torch.int64) -> Tensor:
    """(B, T) ids to a mask: 1 up to and including the first end-of-sequence token of a row, 0 after it.

    Args:
        eos_token: one id, or several of which the first to come counts.
    """
    ends = torch.isin(response_id, torch.as_tensor(eos_token, device=response_id.device)).long()
    return (ends.cumsum(dim=-1) == ends).to(dtype)
