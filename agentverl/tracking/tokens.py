"""Sampled tokens as coloured text: how sure the policy was of each, and what it did not write itself."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.text import Text

Decode = Callable[[list[int]], str]

NOT_SAMPLED = "dim"
NO_LOG_PROB = "cyan"
_STYLES = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "bold red"))
_LONGEST_CHARACTER = 4


def style_of(mask: int, log_prob: float | None) -> str:
    """The colour of a token: by its probability where the policy sampled it, dim where it did not."""
    if not mask:
        return NOT_SAMPLED
    if log_prob is None or math.isnan(log_prob):
        return NO_LOG_PROB
    probability = math.exp(min(log_prob, 0.0))
    return next(style for least, style in _STYLES if probability >= least)


def legend() -> Text:
    """What the colours mean."""
    text = Text().append("sampled with probability ", style="dim")
    for (least, style), above in zip(_STYLES, (1.0, *(least for least, _ in _STYLES)), strict=False):
        text.append(f" {least:g}-{above:g} ", style=style)
    return text.append("  not sampled by the policy", style=NOT_SAMPLED)


def pieces(ids: Sequence[int], decode: Decode) -> Iterator[tuple[int, int, str]]:
    """(start, stop, text) of the ids; those that make up one character together stand together."""
    start = 0
    while start < len(ids):
        stop = start + 1
        text = decode(list(ids[start:stop]))
        while "\N{REPLACEMENT CHARACTER}" in text and stop < min(len(ids), start + _LONGEST_CHARACTER):
            stop += 1
            text = decode(list(ids[start:stop]))
        if "\N{REPLACEMENT CHARACTER}" in text:  # no character at all: show the first token alone
            stop, text = start + 1, decode([ids[start]])
        yield start, stop, text
        start = stop


def coloured(output: dict[str, Any], start: int, stop: int, decode: Decode) -> Text:
    """`response_ids[start:stop]` of a journalled sequence."""
    text = Text()
    masks, log_probs = output["response_mask"], output.get("response_logprobs")
    for first, last, piece in pieces(output["response_ids"][start:stop], decode):
        at = start + first
        mask = min(masks[at : start + last])
        text.append(visible(piece), style=style_of(mask, log_probs[at] if log_probs else None))
    return text


def visible(text: str) -> str:
    """The text with control characters shown instead of obeyed: a model must not steer the reader's terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else _picture(character) for character in text
    )


def _picture(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}"
