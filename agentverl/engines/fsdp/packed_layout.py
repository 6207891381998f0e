"""Where the sequences of a micro-batch stand in one packed row, and which of them share an attention call."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GROUP_TOLERANCE = 8
"""A sequence joins a group when it is at most 1/8 of the group's length shorter."""
GROUP_SLACK = 16
"""Or at most so many tokens shorter: short attention calls cost more to start than to compute."""


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """`count` neighbouring sequences of at most `length` tokens that one batched attention call serves.

    `pad` (count * length) and `unpad` (tokens of the group) map between the group's packed and padded rows; both are
    None when all sequences have exactly `length` tokens.
    """

    tokens: int
    count: int
    length: int
    pad: torch.Tensor | None = None
    unpad: torch.Tensor | None = None

    def to(self, device: torch.device) -> "SequenceGroup":
        if self.pad is None or self.unpad is None:
            return self
        return SequenceGroup(self.tokens, self.count, self.length, self.pad.to(device), self.unpad.to(device))


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """`tokens` that stand once before all `continuations`, whose tokens attend to them too."""

    tokens: int
    continuations: tuple[SequenceGroup, ...]


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """One packed row (1, N): whole sequences in groups, then shared prompts, each before its continuations."""

    groups: tuple[SequenceGroup, ...]
    shared: tuple[SharedPrompt, ...] = ()

    @classmethod
    def of(cls, lengths: Sequence[int], shared: Sequence[tuple[int, Sequence[int]]] = ()) -> "PackedLayout":
        """The layout of sequences of these lengths, and of prompts with the lengths of their continuations.

        Lengths must be positive, those of sequences and of the continuations of one prompt in descending order.
        """
        return cls(_groups(lengths), tuple(SharedPrompt(prompt, _groups(rest)) for prompt, rest in shared))

    @property
    def part_tokens(self) -> list[int]:
        """Tokens of each group, prompt, and group of continuations, as they stand in the row."""
        parts = [group.tokens for group in self.groups]
        for prompt in self.shared:
            parts += [prompt.tokens, *(group.tokens for group in prompt.continuations)]
        return parts

    def to(self, device: torch.device) -> "PackedLayout":
        return PackedLayout(
            tuple(group.to(device) for group in self.groups),
            tuple(
                SharedPrompt(prompt.tokens, tuple(group.to(device) for group in prompt.continuations))
                for prompt in self.shared
            ),
        )


def _groups(lengths: Sequence[int]) -> tuple[SequenceGroup, ...]:
    groups, start = [], 0
    while start < len(lengths):
        longest, stop = lengths[start], start + 1
        shortest_allowed = longest - max(GROUP_SLACK, longest // GROUP_TOLERANCE)
        while stop < len(lengths) and lengths[stop] >= shortest_allowed:
            stop += 1
        groups.append(_group(lengths[start:stop]))
        start = stop
    return tuple(groups)


def _group(lengths: Sequence[int]) -> SequenceGroup:
    count, longest, tokens = len(lengths), lengths[0], sum(lengths)
    if lengths[-1] == longest:
        return SequenceGroup(tokens, count, longest)
    lengths_b = torch.tensor(lengths)
    real_bt = torch.arange(longest) < lengths_b[:, None]
    unpad = real_bt.flatten().nonzero().squeeze(1)
    # Padding stands right of the real tokens, so causal attention never reads it; any token's values will do there.
    pad = torch.zeros(count * longest, dtype=torch.long).index_copy_(0, unpad, torch.arange(tokens))
    return SequenceGroup(tokens, count, longest, pad, unpad)
