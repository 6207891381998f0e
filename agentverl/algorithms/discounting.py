"""Sums over what follows in a row, discounted from one unmasked token to the next."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from agentverl.algorithms.outcomes import unmasked

_BLOCK = 64
"""Positions that one pass goes through one after another, for all blocks of a row at once."""
_ENTRIES = 2**19
"""Entries worked on together, so that what lies between the steps of a formula stays in a processor's cache."""


def some_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of the same rows of each tensor (B, ...), so many at a time that the first (B, T) fits into a cache."""
    rows = max(1, _ENTRIES // max(1, tensors[0].shape[1]))
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)


def reverse_cumsum(values: Tensor) -> Tensor:
    """(B, T): at each position the sum of the values there and after it."""
    return values.flip(-1).cumsum_(-1).flip(-1)


def summed_to_come(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T): at each position, masked or not, the sum of the unmasked values there and after it."""
    sums = (values * mask.to(values.dtype)).flip(-1).cumsum_(-1).flip(-1)
    # What is not finite anywhere in a row reaches the row's first sum.
    if math.isfinite(sums[:, :1].sum().item()):
        return sums
    return reverse_cumsum(torch.where(mask != 0, values, 0))


def discounted_sum(values: Tensor, mask: Tensor, factor: float) -> Tensor:
    """(B, T): x_t = v_t + factor * x_{t+1} where unmasked, and x_t = x_{t+1} elsewhere; 0 after the last position.

    Masked tokens neither add nor discount: with `factor` 0 each holds the next unmasked value.
    """
    own = unmasked(values, mask)
    if factor == 1:
        return reverse_cumsum(own)
    if not own.numel():
        return own
    width = own.shape[1]
    block = min(_BLOCK, width)
    missing = -width % block
    kept = mask != 0
    if missing:
        own, kept = (torch.nn.functional.pad(column, (0, missing)) for column in (own, kept))
    for some, some_kept in some_rows(own, kept):
        _scan(some, some_kept, factor, block)
    return own[:, :width]


def _scan(own: Tensor, kept: Tensor, factor: float, block: int) -> None:
    """x_t = own_t + decay_t * x_{t+1} in place: within blocks as if nothing followed them, then what follows is added.

    The entries of a column lie far apart in memory, so a loop over columns would wait for memory at each: here one
    position of all blocks lies side by side.
    """
    count, blocks = len(own), own.shape[1] // block
    x = own.view(-1, block).t().contiguous()
    unmasked_here = kept.view(-1, block).t().contiguous().to(own.dtype)
    decay = (1 - unmasked_here).add_(unmasked_here, alpha=factor)
    for position in range(block - 2, -1, -1):
        x[position].addcmul_(decay[position], x[position + 1])
        decay[position].mul_(decay[position + 1])
    firsts, first_decays = (one[0].view(count, blocks).t().contiguous() for one in (x, decay))
    following = torch.zeros_like(firsts)
    for number in range(blocks - 2, -1, -1):
        torch.addcmul(firsts[number + 1], first_decays[number + 1], following[number + 1], out=following[number])
    x.addcmul_(decay, following.t().reshape(1, -1))
    own.view(-1, block).copy_(x.t())
