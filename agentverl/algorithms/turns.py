"""The turns of a row: stretches of tokens that the policy sampled in answer to one observation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from agentverl.algorithms.outcomes import finite_outside_mask
from agentverl.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Turns:
    """Which turn each position of B rows belongs to; K is the largest number of turns."""

    number: Tensor
    """(B, T) int64, from 0; a masked position belongs to the turn before it, or to turn 0."""
    tokens: Tensor
    """(B, K) int64: unmasked tokens; 0 where a row has no such turn."""
    mask: Tensor
    """(B, T)."""

    @classmethod
    def of(cls, response_mask: Tensor, turn_index: Tensor | None = None) -> "Turns":
        """Turns as `turn_index` (B, T) numbers them from 0; what it says of masked positions is not looked at.

        Without it each run of unmasked tokens is a turn, so that two turns without a masked token between are one.

        Raises:
            BadInputError: another shape, or numbers that are negative or fall along a row.
        """
        kept = response_mask != 0
        if turn_index is None:
            begins = kept.clone()
            begins[:, 1:] &= ~kept[:, :-1]
            number = (begins.cumsum(dim=1) - 1).clamp(min=0)
        else:
            number = _checked(turn_index, kept)
        count = int(number.max()) + 1 if number.numel() else 0
        tokens = number.new_zeros(len(number), count).scatter_add_(1, number, kept.long())
        return cls(number, tokens, response_mask)

    @property
    def exists(self) -> Tensor:
        """(B, K) bool: the row has a token in that turn."""
        return self.tokens > 0

    def rewards(self, token_level_rewards: Tensor) -> Tensor:
        """(B, K): the rewards of each turn; one on a masked position, if it is finite, counts for the turn before."""
        finite = finite_outside_mask(token_level_rewards, self.mask)
        return finite.new_zeros(self.tokens.shape).scatter_add_(1, self.number, finite)

    def first(self, values: Tensor) -> Tensor:
        """(B, K): of each turn what stands at its first unmasked token; 0 where there is none."""
        kept = self.mask != 0
        # Counted over the whole row, a turn's first token follows as many as all turns before it have.
        before = self.tokens.cumsum(dim=1) - self.tokens
        begins = kept & (kept.cumsum(dim=1) - 1 == before.gather(1, self.number))
        return values.new_zeros(self.tokens.shape).masked_scatter_(self.exists, values[begins])

    def spread(self, per_turn: Tensor, like: Tensor) -> Tensor:
        """(B, T) of the type of `like`: each turn's value (B, K) on its unmasked tokens, 0 elsewhere."""
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        return per_turn.to(dtype).gather(1, self.number) * self.mask.to(dtype)


def _checked(turn_index: Tensor, kept: Tensor) -> Tensor:
    if turn_index.shape != kept.shape:
        raise BadInputError(f"turn_index has the shape {tuple(turn_index.shape)}, the mask {tuple(kept.shape)}")
    numbered = torch.where(kept, turn_index.long(), -1)
    running = numbered.cummax(dim=1).values if numbered.numel() else numbered
    if bool((kept & ((numbered < running) | (numbered < 0))).any()):
        raise BadInputError("turn_index must count the turns of each row from 0 in their order, and it falls or is < 0")
    return running.clamp(min=0)
