"""What happens to prompts that are longer than allowed: refused, dropped, or shortened message by message."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.progress import track

from agentverl.data.chat_template import ChatTemplate
from agentverl.data.datasets import RowDataset
from agentverl.data.files import Row
from agentverl.errors import DatasetError
from agentverl.messages import Message, text_of

Policy = Literal["error", "left", "right", "drop"]
_logger = logging.getLogger(__name__)
_LONG_WORK = 2_000


def fit_prompts(
    rows: RowDataset,
    template: ChatTemplate,
    *,
    max_prompt_length: int,
    policy: Policy,
    tools: Sequence[dict[str, Any]] | None = None,
) -> RowDataset:
    """The rows whose prompt, tools and generation prompt included, has at most `max_prompt_length` tokens.

    `error` refuses a longer one, `drop` leaves its row out, `left` and `right` shorten it on that side: whole messages
    first, never the system message, then the text of the one that remains.

    Raises:
        DatasetError: a prompt is too long under `error`, cannot be shortened enough, or no row is left.
    """
    kept: list[int] = []
    shortened: dict[int, Row] = {}
    numbers: Iterable[int] = range(len(rows))
    if len(rows) >= _LONG_WORK:
        numbers = track(range(len(rows)), "measuring prompts", console=Console(stderr=True), transient=True)
    for number in numbers:
        row = rows[number]
        messages = row.get("raw_prompt")
        length = len(template.prompt(messages, tools)) if messages else 0
        if length <= max_prompt_length:
            kept.append(number)
        elif policy == "error":
            raise DatasetError(
                f"the prompt of row {number} has {length} tokens, more than data.max_prompt_length="
                f"{max_prompt_length}; raise that, or set data.truncation to drop, left or right"
            )
        elif policy != "drop":
            shortened[number] = {**row, "raw_prompt": shorten(messages, template, max_prompt_length, policy, tools)}
            kept.append(number)
    if not kept:
        raise DatasetError(f"all {len(rows)} prompts are longer than data.max_prompt_length={max_prompt_length}")
    if shortened or len(kept) < len(rows):
        _logger.warning(
            "%d of %d prompts were longer than %d tokens: %d dropped, %d shortened on the %s",
            len(rows) - len(kept) + len(shortened),
            len(rows),
            max_prompt_length,
            len(rows) - len(kept),
            len(shortened),
            policy,
        )
    return RowDataset(rows, kept, shortened)


def shorten(
    messages: Sequence[Message],
    template: ChatTemplate,
    max_length: int,
    side: Literal["left", "right"],
    tools: Sequence[dict[str, Any]] | None = None,
) -> list[Message]:
    """Messages whose prompt has at most `max_length` tokens; leading system messages are kept as they are.

    Raises:
        DatasetError: the system messages and tools alone are too long.
    """
    lead = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    system, rest = list(messages[:lead]), list(messages[lead:])

    def excess(candidate: list[Message]) -> int:
        return len(template.prompt([*system, *candidate], tools)) - max_length

    while len(rest) > 1 and excess(rest) > 0:
        rest = _without_oldest(rest) if side == "left" else _without_newest(rest)
    text = text_of(rest[0]) if rest else ""
    while rest and (over := excess(rest)) > 0:
        if not text:
            break
        text = _cut(text, over, side, template.tokenizer)
        rest = [{**rest[0], "content": text}]
    if excess(rest) > 0:
        raise DatasetError(
            f"the system message and tools alone have more than data.max_prompt_length={max_length} tokens"
        )
    return [*system, *rest]


def _without_oldest(messages: list[Message]) -> list[Message]:
    """Without the first message, and without answers to it that would then stand alone."""
    start = 1
    while start < len(messages) - 1 and messages[start]["role"] in ("assistant", "tool"):
        start += 1
    return messages[start:]


def _without_newest(messages: list[Message]) -> list[Message]:
    """Without the last message, and without an assistant's that would then come last."""
    stop = len(messages) - 1
    while stop > 1 and messages[stop - 1]["role"] == "assistant":
        stop -= 1
    return messages[:stop]


def _cut(text: str, tokens: int, side: Literal["left", "right"], tokenizer: Any) -> str:
    """`text` without at least one character, and without about so many tokens, on that side."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    if tokens >= len(offsets):
        return text[len(text) // 2 + 1 :] if side == "left" else text[: len(text) // 2]
    if side == "left":
        return text[max(1, offsets[tokens][0]) :]
    return text[: min(len(text) - 1, offsets[-tokens][0])]
