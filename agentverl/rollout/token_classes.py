"""Which part of a turn each token belongs to: reasoning, call syntax, arguments or answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentverl.data.tool_parsers import ToolParser

TOKEN_CLASSES = ("reasoning", "call_syntax", "arguments", "answer")
"""What the column `token_class` numbers."""
_ANSWER = "answer"


class TokenClasses:
    """Sorts the policy's tokens by what the run's tool parser sees in their text."""

    def __init__(self, tokenizer: Any, parser: ToolParser) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._special = frozenset(tokenizer.all_special_ids)
        self._pieces: dict[int, str] = {}

    def of_row(self, response_ids: np.ndarray[Any, Any], turn_index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """(T) the number of each token's class in `TOKEN_CLASSES`; -1 where the policy did not sample it.

        Args:
            response_ids: (T) of one sequence.
            turn_index: (T) the number of the policy's turn that each token belongs to, else -1.
        """
        classes = np.full_like(response_ids, -1)
        for turn in set(turn_index.tolist()) - {-1}:
            places = np.flatnonzero(turn_index == turn)
            classes[places] = self.of_turn(response_ids[places].tolist())
        return classes

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
