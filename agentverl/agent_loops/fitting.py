"""Messages cut to the tokens that are left, so that an answer is shortened but never dropped."""

from collections.abc import Callable, Sequence

from agentverl.agent_loops.cutting import TokenCutter
from agentverl.agent_loops.limits import Side
from agentverl.messages import Message

_ATTEMPTS = 8


def fit(
    messages: Sequence[Message],
    room: int,
    render: Callable[[list[Message]], list[int]],
    cutter: TokenCutter,
    side: Side,
) -> tuple[list[Message], list[int]] | None:
    """The messages, their texts cut where needed, with their ids, at most `room`; None if not even empty ones fit."""
    if room < 1:
        return None
    messages = [_cut(message, room, cutter, side) for message in messages]
    ids = render(messages)
    if len(ids) <= room:
        return messages, ids
    lengths = [cutter.count(text) for message in messages for text in _texts(message)]
    keep = sum(lengths)
    for _ in range(_ATTEMPTS):
        keep -= len(ids) - room
        limit = _level(lengths, max(0, keep))
        shorter = [_cut(message, limit, cutter, side) for message in messages]
        ids = render(shorter)
        if len(ids) <= room:
            return shorter, ids
        if keep <= 0:
            return None
    return None


def _level(lengths: Sequence[int], total: int) -> int:
    """The largest limit under which the lengths, each cut to it, sum to at most `total`."""
    left, limit = total, 0
    for position, length in enumerate(sorted(lengths)):
        limit = left // (len(lengths) - position)
        if length > limit:
            return limit
        left -= length
    return limit


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if part.get("type") == "text"]


def _cut(message: Message, limit: int, cutter: TokenCutter, side: Side) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        text = cutter.cut(content, limit, side)
        return message if text is content else {**message, "content": text}
    if not content:
        return message
    parts = [{**p, "text": cutter.cut(p["text"], limit, side)} if p.get("type") == "text" else p for p in content]
    return {**message, "content": parts}
