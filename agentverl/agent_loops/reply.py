"""What the model said in one turn, and the messages that answer its calls."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from agentverl.agent_loops.context import AgentContext
from agentverl.messages import Message, ToolCall, ToolResponse, text_of
from agentverl.trajectory import TokenOutput


@dataclass(slots=True)
class Reply:
    """One assistant turn, taken apart.

    `tool_calls` also holds invalid and cut-off calls, each with its `error`. `finish_reason` is `stop`, `length`,
    `aborted`, or `ended` when the chat was over and nothing was generated.
    """

    message: Message
    text: str = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"

    @property
    def is_void(self) -> bool:
        """Whether it holds neither a call that could be read nor an answer: nothing, or one that was cut."""
        if self.tool_calls:
            return all(call.error is not None for call in self.tool_calls)
        return self.finish_reason == "length" or not text_of(self.message).strip()


def read_reply(context: AgentContext, output: TokenOutput, stop_token_ids: Collection[int]) -> Reply:
    """The reply that a server's tokens hold; the token that ended the turn is no part of its text."""
    ids = output.token_ids
    end = len(ids) - 1 if ids and ids[-1] in stop_token_ids else len(ids)
    text = context.decode(ids[:end])
    reason = "stop" if output.stop_reason == "completed" else output.stop_reason
    parsed = context.parser.parse(text, cut=reason != "stop")
    for number, call in enumerate(parsed.tool_calls):
        call.id = call.id or f"call_{number}"
    return Reply(_message(parsed), text, parsed.reasoning, parsed.tool_calls, reason)


def _message(parsed: Any) -> Message:
    """The reply in OpenAI's form; calls that could not be read stay in the content, as they were written."""
    unread = [call.raw for call in parsed.tool_calls if call.error is not None and call.raw]
    message: Message = {
        "role": "assistant",
        "content": "\n".join([parsed.content, *unread] if unread else [parsed.content]),
    }
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    calls = [call.as_dict() for call in parsed.tool_calls if call.error is None]
    if calls:
        message["tool_calls"] = calls
    return message


def answer_message(call: ToolCall, answer: ToolResponse, text: str) -> Message:
    """The message that brings a tool's answer, with its images, to the model."""
    content: str | list[dict[str, Any]] = text
    if answer.image:
        content = [*({"type": "image", "image": image} for image in answer.image), {"type": "text", "text": text}]
    return {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}
