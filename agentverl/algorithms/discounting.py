"""Sums over what follows in a row, discounted from one unmasked token to the next."""

import torch
from torch import Tensor

from agentverl.algorithms.outcomes import unmasked

_BLOCK = 64
"""Positions that one pass goes through one after another, for all blocks of a row at once."""
_ENTRIES = 2**20
"""Entries worked on together, so that they stay in a processor's cache."""


def reverse_cumsum(values: Tensor) -> Tensor:
    """(B, T): at each position the sum of the values there and after it."""
    return values.flip(-1).cumsum_(-1).flip(-1)


def discounted_sum(values: Tensor, mask: Tensor, factor: float) -> Tensor:
    """(B, T): x_t = v_t + factor * x_{t+1} where unmasked, and x_t = x_{t+1} elsewhere; 0 after the last position.

    Masked tokens neither add nor discount: with `factor` 0 each holds the next unmasked value.
    """
    own = unmasked(values, mask)
    if factor == 1:
        return reverse_cumsum(own)
    decay = torch.where(mask != 0, own.new_tensor(factor), 1)
    rows = max(1, _ENTRIES // max(1, own.shape[1]))
    for some, some_decay in zip(torch.split(own, rows), torch.split(decay, rows), strict=True):
        some.copy_(_scan(some, some_decay))
    return own


def _scan(own: Tensor, decay: Tensor) -> Tensor:
    """x_t = own_t + decay_t * x_{t+1}: within blocks as if nothing followed them, then what follows is added.

    The entries of a column lie far apart in memory, so a loop over columns would wait for memory at each: here one
    position of all blocks lies side by side.
    """
    count, width = own.shape
    block = min(_BLOCK, width)
    missing = -width % block if block else 0
    if not own.numel():
        return own
    blocks = (width + missing) // block
    x = torch.nn.functional.pad(own, (0, missing)).view(-1, block).t().contiguous()
    decayed = torch.nn.functional.pad(decay, (0, missing)).view(-1, block).t().contiguous()
    for position in range(block - 2, -1, -1):
        x[position].addcmul_(decayed[position], x[position + 1])
        decayed[position].mul_(decayed[position + 1])
    firsts, first_decays = (one[0].view(count, blocks).t().contiguous() for one in (x, decayed))
    following = torch.zeros_like(firsts)
    for number in range(blocks - 2, -1, -1):
        torch.addcmul(firsts[number + 1], first_decays[number + 1], following[number + 1], out=following[number])
    x.addcmul_(decayed, following.t().reshape(1, -1))
    return x.t().reshape(count, blocks * block)[:, :width]
