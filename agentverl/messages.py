"""Messages in OpenAI's form, the tool calls inside them, and the answers of tools."""

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""`role`, `content` (a string or a list of parts), and `tool_calls`, `tool_call_id`, `name` where they apply."""


@dataclass(slots=True)
class ToolCall:
    """One call that the model wrote; `error` says why it cannot be carried out (malformed, cut off, unknown)."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    error: str | None = None
    raw: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The call as it stands in an assistant message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True)
class ToolResponse:
    """What a tool answers. `done` ends the episode; `reward` is credited to the turn that made the call."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    done: bool = False
    error: str | None = None
    state_key: str | None = None
    """Names the state that the answer shows, where an environment answered and names it."""


def text_of(message: Message) -> str:
    """The text of a message, its parts joined; images and other parts are left out."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if part.get("type") == "text")
