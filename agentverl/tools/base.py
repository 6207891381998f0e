"""What a tool is: one instance a trajectory, called by the model, described by its annotations and docstring."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from agentverl.deadlines import Deadline
from agentverl.messages import ToolResponse
from agentverl.sandboxes.base import Sandbox
from agentverl.tools.schema import FunctionSchema, function_schema

ToolAnswer = ToolResponse | str | dict[str, Any] | list[Any] | float | tuple[Any, ...] | None
"""What a call may return: text, a number, what becomes JSON, `(answer, reward[, metrics])`, or a ToolResponse."""


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """What a tool may use of its trajectory; `random` is seeded by the trajectory."""

    sandbox: Sandbox | None = None
    row: dict[str, Any] = field(default_factory=dict)
    trajectory_id: str = ""
    deadline: Deadline = field(default_factory=Deadline)
    seed: int | None = None
    _random: Random | None = field(init=False, default=None)

    @property
    def random(self) -> Random:
        """Random numbers of this trajectory alone."""
        if self._random is None:  # its state takes 3 kB
            self._random = Random(self.seed)
        return self._random


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
