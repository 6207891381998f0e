"""What a tool is: one instance a trajectory, called by the model, described by its annotations and docstring."""

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from agentverl.messages import ToolResponse
from agentverl.tools.context import PluginContext
from agentverl.tools.schema import FunctionSchema, function_schema

ToolAnswer = ToolResponse | str | dict[str, Any] | list[Any] | float | tuple[Any, ...] | None
"""What a call may return: text, a number, what becomes JSON, `(answer, reward[, metrics])`, or a ToolResponse."""


class ToolContext(PluginContext):
    """What a tool may use of its trajectory."""

    __slots__ = ()


class ToolSettings(BaseModel):
    """Keys beside `tool` and `timeout_seconds` in the YAML; a tool's own `Settings` derives from it."""

    model_config = ConfigDict(extra="forbid")


class Tool(ABC):
    """Subclass to give the model something to call; only `call` must be written.

    The model sees `name`, the docstring of `call` (or of the class), and the parameters of `call` with their types and
    the descriptions in its `Args:` section. Arguments are checked and coerced before `call` is entered. Raise ToolError
    to tell the model what is wrong and InfrastructureError to fail the trajectory; any other exception becomes an
    answer and is counted.
    """

    name: ClassVar[str] = ""
    """What the model calls it; the class name in snake case when empty."""

    Settings: ClassVar[type[ToolSettings]] = ToolSettings

    context: ToolContext
    """Set before `open`."""

    def __init__(self, settings: Any = None, resources: Any = None) -> None:
        self.settings = settings
        self.resources = resources

    @classmethod
    def describe(cls, settings: Any) -> FunctionSchema | dict[str, Any]:
        """What the model is told: from `call`; a dict in OpenAI's form when the tool checks its arguments itself."""
        return function_schema(cls.call, name=tool_name(cls), description=cls.__doc__, bound=True)

    @classmethod
    async def setup(cls, settings: Any) -> Any:
        """Make what all trajectories of a process share (an index, a browser, a pool of servers)."""
        return None

    @classmethod
    async def teardown(cls, resources: Any) -> None:
        """Give back what `setup` made."""
        return None

    async def open(self, context: ToolContext, *args: Any, **task: Any) -> None:
        """Begin a trajectory; `task` is the row's `tools_kwargs` for this tool."""
        return None

    @abstractmethod
    async def call(self, *args: Any, **arguments: Any) -> ToolAnswer:
        """Answer one call; write the parameters that the model may give, with types and descriptions."""

    async def close(self) -> None:
        """End the trajectory; runs always, also after a deadline, a cancellation or a crash of the loop."""
        return None


def tool_name(tool_class: type[Tool]) -> str:
    """A tool's own name, else its class name in snake case."""
    return tool_class.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", tool_class.__name__).lower()
