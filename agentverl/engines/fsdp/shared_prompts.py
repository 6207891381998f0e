"""Sequences that begin with the same prompt: kept in one micro-batch, where its tokens are computed once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentverl.data.packing import micro_batches
from agentverl.engines.settings import MicroBatchSettings
from agentverl.protocol.ragged import Ragged

WORTH_SHARING = 16
"""Tokens that have to be saved, as sharing costs more and smaller attention calls."""


@dataclass(frozen=True, slots=True)
class Family:
    """Rows with one prompt, whose first `shared` tokens stand once in the packed row; 0 where each row has its own."""

    rows: list[int]
    shared: int

    @classmethod
    def of(cls, rows: list[int], prompt_length: int) -> "Family":
        """All of the prompt but its last token is shared, so that each row predicts with tokens of its own."""
        saved = (prompt_length - 1) * (len(rows) - 1)
        return cls(rows, prompt_length - 1 if saved >= WORTH_SHARING else 0)

    def tokens(self, lengths: Sequence[int]) -> int:
        """How many tokens a forward pass takes; `lengths` (B) are those of whole sequences."""
        return self.shared + sum(lengths[row] - self.shared for row in self.rows)


def families(prompts: Ragged, lengths: Sequence[int]) -> list[Family]:
    """The rows (B) that a forward pass has to see, by prompt; `lengths` are 0 for those that it has not."""
    rows_of: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts.unbind()):
        if lengths[row]:
            rows_of.setdefault(prompt.cpu().numpy().tobytes(), []).append(row)
    prompt_lengths = prompts.lengths.tolist()
    return [Family.of(rows, prompt_lengths[rows[0]]) for rows in rows_of.values()]


def schedule(prompts: Ragged, lengths: Sequence[int], limits: MicroBatchSettings) -> list[list[int]]:
    """All rows (B) in micro-batches within the limits, each row in one, those of one prompt together where they fit.

    Raises:
        BadInputError: a sequence alone is longer than the limit.
    """
    found = families(prompts, lengths)
    unseen = [row for row, length in enumerate(lengths) if not length]
    if limits.max_sequences is not None:
        if limits.max_tokens is not None:
            return micro_batches(lengths, max_tokens=limits.max_tokens, max_sequences=limits.max_sequences)
        rows = torch.tensor([row for family in found for row in family.rows] + unseen, dtype=torch.long)
        chunks = rows.tensor_split(max(1, -(-len(rows) // limits.max_sequences)))
        return sorted((sorted(chunk.tolist()) for chunk in chunks), key=lambda chunk: -sum(lengths[r] for r in chunk))
    units = [unit for family in found for unit in _units(family, lengths, limits.max_tokens)]
    tokens = [unit.tokens(lengths) for unit in units]
    batches = micro_batches(tokens, max_tokens=limits.max_tokens, max_sequences=None)
    scheduled = [[row for number in batch for row in units[number].rows] for batch in batches]
    scheduled[-1] += unseen
    return [sorted(rows) for rows in scheduled]


def shares(prompts: Ragged, lengths: Sequence[int], count: int) -> list[list[int]]:
    """The rows (B) that a forward pass has to see, dealt out to at most `count` passes of about as many tokens."""
    found = families(prompts, lengths)
    share = -(-sum(family.tokens(lengths) for family in found) // count)
    units = [unit for family in found for unit in _units(family, lengths, share)]
    tokens = [unit.tokens(lengths) for unit in units]
    dealt = micro_batches(tokens, max_tokens=None, max_sequences=None, count_at_least=count)
    return [sorted(row for number in numbers for row in units[number].rows) for numbers in dealt if numbers]


def _units(family: Family, lengths: Sequence[int], max_tokens: int | None) -> list[Family]:
    """What is dealt out together: rows that share tokens, as far as they fit into one micro-batch."""
    units: list[Family] = []
    for row in family.rows:
        if units and family.shared:
            grown = Family.of([*units[-1].rows, row], family.shared + 1)
            if max_tokens is None or grown.tokens(lengths) <= max_tokens:
                units[-1] = grown
                continue
        units.append(Family([row], 0))
    return units
