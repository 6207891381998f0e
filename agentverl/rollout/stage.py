"""What one trajectory acts on: its tools and its environment, opened before the loop runs and always closed."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentverl.deadlines import Deadline, OutOfTimeError, bounded
from agentverl.environments.base import Environment, EnvironmentContext, Observation
from agentverl.environments.loading import EnvironmentSpec, reset
from agentverl.messages import Message
from agentverl.tools.base import Tool, ToolContext
from agentverl.tools.bound import BoundTool
from agentverl.tools.toolset import Toolset, close_all

logger = logging.getLogger(__name__)


class Worlds:
    """The environments of a process by name, each set up when the first trajectory needs it."""

    def __init__(self, name: str | None = None, settings: Mapping[str, Any] | None = None) -> None:
        self._specs: dict[str, EnvironmentSpec] = {}
        self._ready: set[str] = set()
        self._lock = asyncio.Lock()
        self._default = name
        if name is not None:
            self._specs[name] = EnvironmentSpec.find(name, settings)

    async def find(self, row: Mapping[str, Any]) -> EnvironmentSpec | None:
        """The environment that a row names, else the configured one; None where there is neither.

        Raises:
            PluginError: there is no such environment.
        """
        name = row.get("environment") or self._default
        if name is None:
            return None
        if name not in self._specs:
            self._specs[name] = EnvironmentSpec.find(name)
        async with self._lock:
            if name not in self._ready:
                await self._specs[name].setup()
                self._ready.add(name)
        return self._specs[name]

    async def teardown(self) -> None:
        """Give back what the environments made at set-up."""
        while self._ready:
            await self._specs[self._ready.pop()].teardown()


class Stage:
    """Tools and environment of one trajectory.

    `opening` says what was being opened last, so that a failure is put at the right boundary.
    """

    def __init__(self, row: Mapping[str, Any], trajectory_id: str, seed: int) -> None:
        self.row = dict(row)
        self.tools: dict[str, BoundTool] = {}
        self.world_schemas: Sequence[dict[str, Any]] = ()
        self.environment: Environment | None = None
        self.state_key: str | None = None
        """What the environment names its first state."""
        self.opening: Literal["tool", "environment"] = "environment"
        self._trajectory_id = trajectory_id
        self._seed = seed
        self._opened: dict[str, BoundTool] = {}

    async def open(self, toolset: Toolset, worlds: Worlds, deadline: Deadline) -> None:
        """Open the tools, then reset the environment, whose messages replace the row's `raw_prompt`.

        Raises:
            BadInputError: the row does not fit the tools or the environment.
        """
        spec = await worlds.find(self.row)
        identity: dict[str, Any] = {"row": self.row, "trajectory_id": self._trajectory_id, "deadline": deadline}
        self.opening = "tool"
        tool_context = ToolContext(**identity, seed=self._seed)
        self._opened = self.tools = await toolset.open(tool_context, self.row.get("tools_kwargs"))
        self.opening = "environment"
        if spec is None:
            return
        context = EnvironmentContext(**identity, seed=self._seed + 1)
        self.environment = spec.create(context)
        observation = await reset(self.environment, context, self.row.get("environment_kwargs") or {})
        self._offer(observation)

    def _offer(self, observation: Observation) -> None:
        self.state_key = observation.state_key
        if observation.messages:
            self.row["raw_prompt"] = observation.messages
        if observation.tools is not None:
            names = [tool for tool in observation.tools if isinstance(tool, str)]
            unknown = [name for name in names if name not in self._opened]
            if unknown:
                known = ", ".join(self._opened) or "none"
                raise ValueError(
                    f"the environment offers the tool {unknown[0]!r}, which is not configured; known: {known}"
                )
            self.tools = {name: self._opened[name] for name in names}
            self.world_schemas = [tool for tool in observation.tools if not isinstance(tool, str)]

    def show(self, messages: Sequence[Message]) -> None:
        """Let the environment see the conversation as it ended."""
        if self.environment is not None:
            self.environment.context.messages = messages

    @property
    def needs_closing(self) -> bool:
        """Whether the environment or one of the tools defines `close`."""
        if self.environment is not None and type(self.environment).close is not Environment.close:
            return True
        return any(type(bound.tool).close is not Tool.close for bound in self._opened.values())

    async def close(self, seconds: float | None) -> None:
        """Close everything; what fails or takes longer than `seconds` is logged and left behind."""
        closing = [close_all(self._opened)]
        if self.environment is not None:
            closing.append(self.environment.close())
        try:
            results = await bounded(asyncio.gather(*closing, return_exceptions=True), seconds)
        except OutOfTimeError as error:
            logger.warning("closing trajectory %s: %s", self._trajectory_id, error)
            return
        for result in results:
            if isinstance(result, Exception):
                logger.warning("closing trajectory %s failed", self._trajectory_id, exc_info=result)
