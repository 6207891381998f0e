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
        if not tail:
            starts = self._starts(head)
            if len(starts) <= limit:
                return text
            return self._assemble(head, starts, head, starts, self._room(limit), side)
        return self._assemble(head, self._starts(head), tail, self._starts(tail), self._room(limit), side)

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

    @staticmethod
    def _assemble(
        head: str, head_starts: list[int], tail: str, tail_starts: list[int], room: tuple[int, str], side: Side
    ) -> str:
        keep, marker = room
        before = {"left": 0, "right": keep, "middle": keep - keep // 2}[side]
        after = keep - before
        first = head[: head_starts[before]] if before < len(head_starts) else head
        last = tail[tail_starts[-after] :] if 0 < after <= len(tail_starts) else (tail if after else "")
        return first + marker + last

    def _starts(self, text: str) -> list[int]:
        """The index of the first character of each token of `text`."""
        return [start for start, _ in self._plain.encode(text, add_special_tokens=False).offsets]
