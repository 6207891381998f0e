"""What an agent loop needs from other rooms: a model client, a chat template, a reply parser, bound tools, a world."""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Protocol

from agentverl.messages import Message, ToolCall, ToolResponse
from agentverl.trajectory import AgentLoopOutput, Termination, TokenOutput


class ModelClient(Protocol):
    """A client of the rollout servers, bound to one trajectory."""

    def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> Awaitable[TokenOutput]: ...


class Template(Protocol):
    """Turns messages into token ids without ever encoding sampled tokens again (`agentverl.data.chat_template`)."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def stop_token_ids(self) -> Collection[int]: ...
    @property
    def strips_reasoning(self) -> bool: ...
    def prompt(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> list[int]: ...
    def delta(
        self,
        messages_before: Sequence[Message],
        new_messages: Sequence[Message],
        tools: list[dict[str, Any]] | None,
    ) -> list[int]: ...
    def end_of_turn(self, sampled_ids: Sequence[int]) -> list[int]: ...


class Parsed(Protocol):
    """A reply taken apart; calls that are malformed or cut off carry an `error`."""

    @property
    def content(self) -> str: ...
    @property
    def reasoning(self) -> str | None: ...
    @property
    def tool_calls(self) -> list[ToolCall]: ...


class ReplyParser(Protocol):
    """Finds content, reasoning and tool calls in a reply's text (`agentverl.data.tool_parsers`)."""

    def parse(self, text: str, *, cut: bool = False) -> Parsed: ...


class BoundTool(Protocol):
    """A tool opened for one trajectory."""

    @property
    def schema(self) -> dict[str, Any]: ...
    @property
    def timeout_seconds(self) -> float | None: ...
    async def call(self, arguments: dict[str, Any]) -> ToolResponse: ...


class WorldStep(Protocol):
    """What an environment answers to an action."""

    @property
    def observation(self) -> Any: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def info(self) -> Mapping[str, Any]: ...


class World(Protocol):
    """The environment of one trajectory, as far as an agent loop touches it."""

    async def step(self, action: Message) -> WorldStep: ...


class Conversation(Protocol):
    """A chat, as far as the runner touches one whose loop was cut short."""

    def stop(self, termination: Termination | str) -> None: ...
    def outputs(self) -> list[AgentLoopOutput]: ...
