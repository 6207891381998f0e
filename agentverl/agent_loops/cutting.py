"""Texts cut to a number of tokens, at the left, the right or in the middle."""

from typing import Any

from tokenizers import Tokenizer

from agentverl.agent_loops.limits import Side

MARKER = "...(truncated)..."
# No vocabulary in use has longer tokens (runs of spaces or dashes come close); bounds what is tokenised of a huge text.
_MAX_CHARACTERS_PER_TOKEN = 128


class TokenCutter:
    """Measures and cuts text in tokens of a fast tokenizer; the strings of control tokens are plain text here."""

    def __init__(self, tokenizer: Any) -> None:
        full = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain = Tokenizer(full.model)  # without the added tokens
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(full, part) is not None:
                setattr(self._plain, part, getattr(full, part))

    def cut(self, text: str, limit: int, side: Side) -> str:
        """`text` if it has at most `limit` tokens, else what fits: `left` keeps the end, `right` the beginning.

        What was left out is marked where the limit has room for more than the marker.
        """
        if len(text) <= limit and len(text.encode("utf-8", "replace")) <= limit:
            return text  # a token holds at least one byte
        head, tail = self._ends(text, limit)
        starts = self._starts(head)
        if not tail:
            if len(starts) <= limit:
                return text
            tail = head
        ends = (head, starts), (tail, starts if tail is head else self._starts(tail))
        keep, marker = self._room(limit)
        while keep > 0:
            cut = _assemble(*ends, keep, marker, side)
            excess = self.count(cut) - limit
            if excess <= 0:
                return cut
            keep -= excess  # what was cut apart is encoded in more tokens than it had
        return ""

    def count(self, text: str) -> int:
        """How many tokens `text` has."""
        return len(self._starts(text))

    def _ends(self, text: str, limit: int) -> tuple[str, str]:
        """(text, "") when tokenising all of it is cheap, else its first and its last characters."""
        most = max(4096, limit * _MAX_CHARACTERS_PER_TOKEN)
        return (text, "") if len(text) <= 2 * most else (text[:most], text[-most:])

    def _room(self, limit: int) -> tuple[int, str]:
        marker = len(self._starts(MARKER))
        return (limit - marker, MARKER) if limit > 2 * marker else (limit, "")

    def _starts(self, text: str) -> list[int]:
        """The index of the first character of each token of `text`."""
        return [start for start, _ in self._plain.encode(text, add_special_tokens=False).offsets]


_Encoded = tuple[str, list[int]]
"""A text, and the index of the first character of each of its tokens."""


def _assemble(head: _Encoded, tail: _Encoded, keep: int, marker: str, side: Side) -> str:
    """The first tokens of `head`, the marker, and the last tokens of `tail`, `keep` of them together."""
    before = {"left": 0, "right": keep, "middle": keep - keep // 2}[side]
    text, starts = head
    first = text[: starts[before]] if before < len(starts) else text
    text, starts = tail
    return first + marker + text[_start_of_last(starts, keep - before, len(text)) :]


def _start_of_last(starts: list[int], count: int, end: int) -> int:
    """Where the last `count` tokens begin; a character of which they hold a part only is left out."""
    index = len(starts) - count
    if count <= 0:
        return end
    if index <= 0:
        return 0
    torn = starts[index - 1] == starts[index]
    return next((start for start in starts[index:] if start > starts[index]), end) if torn else starts[index]
