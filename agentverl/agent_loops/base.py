"""What an agent loop is: one instance a trajectory, a coroutine that talks to the policy and acts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentverl.agent_loops.chat import Chat
from agentverl.agent_loops.context import AgentContext
from agentverl.agent_loops.protocols import BoundTool
from agentverl.errors import DatasetError, SettingsError
from agentverl.trajectory import AgentLoopOutput


class AgentLoopSettings(BaseModel):
    """Keys of a loop's entry beside `name` and `_target_`; a loop's own `Settings` derives from it."""

    model_config = ConfigDict(extra="forbid")


class AgentLoopBase(ABC):
    """Subclass to write an agent: `run` asks a chat for replies, acts on them, and returns the chat's outputs.

    A loop that wants the tokens themselves calls `self.server_manager.generate` and returns AgentLoopOutputs of its
    own; what it marks as sampled is checked against what the server sampled.
    """

    Settings: ClassVar[type[BaseModel]] = AgentLoopSettings
    calls_tools: ClassVar[bool] = True
    """False where the loop never does: a run that configures tools for it alone is refused."""

    def __init__(self, context: AgentContext, **settings: Any) -> None:
        self.context = context
        self.settings: Any = self.check_settings(settings)
        self.server_manager = context.server_manager
        self.tokenizer = context.tokenizer
        self.processor = context.processor
        self.tools = context.tools
        self.environment = context.environment
        self.sandbox = context.sandbox
        self.models = context.models
        self.gateway = context.gateway

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> Any:
        """The entry's own keys as `Settings`; also used to judge an entry before anything starts.

        Raises:
            SettingsError: a key that the loop does not know, or a value of the wrong kind.
        """
        try:
            return cls.Settings(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            known = ", ".join(cls.Settings.model_fields) or "none"
            key = ".".join(str(part) for part in first["loc"])
            raise SettingsError(f"{cls.__name__}: {key}: {first['msg']}; its settings: {known}") from None

    async def chat(
        self,
        row: Mapping[str, Any],
        sampling_params: Mapping[str, Any],
        *,
        tools: Mapping[str, BoundTool] | None = None,
    ) -> Chat:
        """A chat with the policy that begins with the row's `raw_prompt`; `tools` default to all of the trajectory."""
        messages = row.get("raw_prompt")
        if not messages:
            raise DatasetError(f"the row has no raw_prompt to begin a chat with; its fields: {', '.join(sorted(row))}")
        chat = Chat(self.context, list(messages), sampling_params, tools=tools)
        self.context.chats.append(chat)
        return chat

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one episode; `row` holds the dataset row's fields (`raw_prompt`, `extra_info`, `tools_kwargs`, ...)."""
