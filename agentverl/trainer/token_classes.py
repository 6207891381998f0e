"""Which part of a turn each token belongs to: reasoning, call syntax, arguments or answer."""

from collections.abc import Sequence
from typing import Any

import torch

from agentverl.data.tool_parsers import ToolParser
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.workers.entropy_classes import TOKEN_CLASSES

_ANSWER = "answer"


class TokenClasses:
    """Sorts the policy's tokens by what the run's tool parser sees in their text."""

    def __init__(self, tokenizer: Any, parser: ToolParser) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._special = frozenset(tokenizer.all_special_ids)
        self._pieces: dict[int, str] = {}

    def column(self, batch: DataProto) -> Ragged:
        """The number of each response token's class in `TOKEN_CLASSES`; -1 where the policy did not sample it."""
        responses, turns = batch.batch.ragged("responses"), batch.batch.ragged("turn_index")
        classes = torch.full_like(responses.values, -1)
        for row in range(len(responses)):
            start, numbers = int(responses.offsets[row]), turns[row]
            for turn in set(numbers.tolist()) - {-1}:
                places = (numbers == turn).nonzero().flatten()
                classes[start + places] = torch.tensor(self.of_turn(responses[row][places].tolist()))
        return responses.like(classes)

    def of_turn(self, ids: Sequence[int]) -> list[int]:
        """The class of each token of one turn, by where it begins in the turn's text.

        A special token, such as the one that ends a turn, is scaffolding: it goes with what stands before it.
        """
        pieces = [self._piece(token) for token in ids]
        kinds = [_ANSWER] * sum(len(piece) for piece in pieces)
        for region in self._parser.regions("".join(pieces)):
            kinds[region.start : region.stop] = [region.kind] * (region.stop - region.start)
        classes, position, before = [], 0, _ANSWER
        for token, piece in zip(ids, pieces, strict=True):
            kind = kinds[position] if position < len(kinds) and token not in self._special else before
            classes.append(TOKEN_CLASSES.index(kind))
            position, before = position + len(piece), kind
        return classes

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return self._pieces[token]
