"""Conversations as token ids with a loss mask, for supervised fine-tuning."""

import logging
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import track

from agentverl.data.chat_template import ChatTemplate
from agentverl.data.datasets import messages_of
from agentverl.data.files import from_column
from agentverl.data.overlong import Policy
from agentverl.errors import BadInputError, DatasetError
from agentverl.messages import Message

Example = tuple[list[int], list[int]]
"""Ids and mask of one conversation; mask 1 on what an assistant samples."""
_logger = logging.getLogger(__name__)
_LONG_WORK = 2_000


class SFTDataset(Sequence[Example]):
    """Conversations, encoded once, exactly as a rollout would hold their tokens.

    A row has messages under `messages_key` and may have tools under `tools_key`, both also as JSON text. One longer
    than `max_length` is an error, dropped, or cut: `right` keeps whole turns from the beginning, `left` the system
    message and whole turns up to the end; where not even one turn fits, its tokens are cut.

    Raises:
        DatasetError: a column is missing, a row cannot be rendered or teaches nothing, or no row is left.
    """

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        template: ChatTemplate,
        *,
        max_length: int,
        truncation: Policy = "error",
        messages_key: str = "messages",
        tools_key: str = "tools",
    ) -> None:
        if not rows:
            raise DatasetError("there are no conversations")
        if messages_key not in rows[0]:
            raise DatasetError(
                f"the data have no column {messages_key!r} (data.messages_key); they have {', '.join(sorted(rows[0]))}"
            )
        self._template = template
        self._max_length = max_length
        self._truncation = truncation
        self._examples: list[Example] = []
        numbered: Any = enumerate(rows)
        if len(rows) >= _LONG_WORK:
            console = Console(stderr=True)
            numbered = track(numbered, "encoding conversations", len(rows), console=console, transient=True)
        for number, row in numbered:
            messages = messages_of(row.get(messages_key), number, messages_key)
            example = self._encode(number, messages, _tools_of(row.get(tools_key), number, tools_key))
            if example is not None:
                self._examples.append(example)
        if not self._examples:
            raise DatasetError(f"all {len(rows)} conversations are longer than data.max_length={max_length}")
        if len(self._examples) < len(rows):
            left_out = len(rows) - len(self._examples)
            _logger.warning("%d of %d conversations were too long and dropped", left_out, len(rows))

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: Any) -> Any:
        return self._examples[index]

    def _encode(self, number: int, messages: list[Message], tools: list[dict[str, Any]] | None) -> Example | None:
        try:
            ids, mask = self._template.conversation(messages, tools)
            if not any(mask):
                raise DatasetError(f"row {number} teaches nothing: it has no assistant message")
            if len(ids) <= self._max_length:
                return ids, mask
            if self._truncation == "drop":
                return None
            if self._truncation == "error":
                raise DatasetError(
                    f"row {number} has {len(ids)} tokens, more than data.max_length={self._max_length}; raise that, or "
                    "set data.truncation to drop, left or right"
                )
            if self._truncation == "right":
                return self._cut_right(ids, mask)
            return self._cut_left(messages, tools, ids, mask)
        except DatasetError:
            raise
        except BadInputError as error:
            raise DatasetError(f"row {number}: {error}") from error

    def _cut_right(self, ids: list[int], mask: list[int]) -> Example | None:
        """Up to the last assistant turn that fits whole; an example that teaches nothing is left out."""
        stop = self._max_length
        while stop > 0 and not (mask[stop - 1] and not mask[stop]):
            stop -= 1
        stop = stop or self._max_length
        return (ids[:stop], mask[:stop]) if any(mask[:stop]) else None

    def _cut_left(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, ids: list[int], mask: list[int]
    ) -> Example | None:
        lead = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        starts = [i for i in range(lead + 1, len(messages)) if messages[i]["role"] == "user"]
        for start in starts:
            shorter, kept = self._template.conversation([*messages[:lead], *messages[start:]], tools)
            if len(shorter) <= self._max_length and any(kept):
                return shorter, kept
        ids, mask = ids[-self._max_length :], mask[-self._max_length :]
        return (ids, mask) if any(mask) else None


def _tools_of(value: Any, number: int, column: str) -> list[dict[str, Any]] | None:
    tools = from_column(value)
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DatasetError(f"row {number}: {column} is no list of tool schemas")
    return tools
