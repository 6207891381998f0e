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
    starts: Tensor
    """Where the turns that exist begin, row by row, as positions in the flattened (B, T)."""
    mask: Tensor
    """(B, T)."""

    @classmethod
    def of(cls, response_mask: Tensor, turn_index: Tensor | None = None) -> "Turns":
        """Turns as `turn_index` (B, T) numbers them from 0; what it says of masked positions is not looked at.

        Without it each run of unmasked tokens is a turn, so that two turns without a masked token between are one.

        Raises:
            BadInputError: another shape, or numbers that are negative or fall along a row.
        """
        if turn_index is not None and turn_index.shape != response_mask.shape:
            raise BadInputError(
                f"turn_index has the shape {tuple(turn_index.shape)}, the mask {tuple(response_mask.shape)}"
            )
        kept = response_mask != 0
        positions = kept.flatten().nonzero().squeeze(1)
        row_ends = torch.searchsorted(positions, kept.shape[1] * torch.arange(len(kept) + 1, device=kept.device))
        row_starts = row_ends[:-1][row_ends.diff() > 0]
        steps = _steps(positions, row_starts, turn_index)
        begins = steps > 0
        begins[row_starts] = True
        begins = begins.nonzero().squeeze(1)
        number = steps.new_zeros(kept.numel()).index_copy_(0, positions, steps).view(kept.shape).cumsum(dim=1)
        starts = positions[begins]
        turn = number.flatten()[starts]
        count = int(turn.max()) + 1 if len(turn) else 0
        tokens = turn.new_zeros(len(kept), count)
        lengths = begins.diff(append=begins.new_tensor([len(positions)]))
        tokens[starts // max(1, kept.shape[1]), turn] = lengths
        return cls(number, tokens, starts, response_mask)

    @property
    def exists(self) -> Tensor:
        """(B, K) bool: the row has a token in that turn."""
        return self.tokens > 0

    def rewards(self, token_level_rewards: Tensor) -> Tensor:
        """(B, K): the rewards of each turn; one on a masked position, if it is finite, counts for the turn before."""
        finite = finite_outside_mask(token_level_rewards, self.mask)
        per_turn = finite.new_zeros(len(finite), max(1, self.tokens.shape[1])).scatter_add_(1, self.number, finite)
        return per_turn[:, : self.tokens.shape[1]]

    def first(self, values: Tensor) -> Tensor:
        """(B, K): of each turn what stands at its first unmasked token; 0 where there is none."""
        return values.new_zeros(self.tokens.shape).masked_scatter_(self.exists, values.flatten()[self.starts])

    def spread(self, per_turn: Tensor, like: Tensor) -> Tensor:
        """(B, T) of the type of `like`: each turn's value (B, K) on its unmasked tokens, 0 elsewhere."""
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        if not per_turn.numel():
            return torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
        return per_turn.to(dtype).gather(1, self.number).mul_(self.mask)


def _steps(positions: Tensor, row_starts: Tensor, turn_index: Tensor | None) -> Tensor:
    """For each unmasked token by how much its turn's number is above that of the one before it in its row."""
    if turn_index is None:
        # Positions that do not follow each other have masked ones between.
        steps = (_differences(positions) > 1).long()
        steps[row_starts] = 0
        return steps
    numbers = turn_index.flatten().index_select(0, positions).long()
    steps = _differences(numbers)
    steps[row_starts] = numbers[row_starts]
    if len(steps) and bool(steps.min() < 0):
        token = int((steps < 0).nonzero()[0])
        row, column = divmod(int(positions[token]), turn_index.shape[1])
        raise BadInputError(
            "turn_index must count the turns of each row from 0 in their order; it falls, or is below 0: "
            f"{int(numbers[token])} at token {column} of row {row}"
        )
    return steps


def _differences(values: Tensor) -> Tensor:
    """(N): each value less the one before it, from 0."""
    differences = torch.zeros_like(values)
    torch.sub(values[1:], values[:-1], out=differences[1:])
    return differences
