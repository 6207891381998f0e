"""Tools written for verl: its names to import, and the adapter behind `class_name` entries of the YAML.

A tool file written for verl works after its import lines point here; one that imports verl itself works where verl is
installed.
"""

import json
import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agentverl import plugins
from agentverl.errors import PluginError, SettingsError
from agentverl.messages import ToolResponse
from agentverl.tools.base import Tool, ToolAnswer, ToolContext
from agentverl.tools.function_tool import tool
from agentverl.tools.toolset import ToolSpec, checked_timeout

function_tool = tool
"""verl's name of the decorator for annotated functions."""


class OpenAIFunctionSchema(BaseModel):
    """The `function` part of a tool's schema; `parameters` is a JSON schema."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str = ""
    parameters: dict[str, Any]
    strict: bool = False


class OpenAIFunctionToolSchema(BaseModel):
    """A tool's schema in OpenAI's form."""

    type: str = "function"
    function: OpenAIFunctionSchema


class BaseTool:
    """verl's base class: one object a process, `create`/`execute`/`release` by instance id."""

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        self.config = config
        schema = tool_schema or self.get_openai_tool_schema()
        self.tool_schema: OpenAIFunctionToolSchema = schema
        self.name = schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        """The schema given to the constructor; override it in a tool whose YAML has none."""
        if not hasattr(self, "tool_schema"):
            raise PluginError(f"{type(self).__name__} has no schema: give the entry a `tool_schema`")
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        return None


class VerlTool(Tool):
    """One trajectory's instance of a tool in verl's form; `settings` is the tool object of the process.

    `create` runs once a trajectory, not once a call, so that such a tool can keep state.
    """

    instance_id = ""

    async def open(self, context: ToolContext, *args: Any, **task: Any) -> None:
        created = await self.settings.create(**task)
        self.instance_id = created[0] if isinstance(created, tuple) else created

    async def call(self, *args: Any, **arguments: Any) -> ToolAnswer:
        """Pass the arguments on, unchecked: such a tool checks them itself."""
        answer, reward, metrics = await self.settings.execute(self.instance_id, arguments)
        if not isinstance(answer, str | ToolResponse):  # verl's own ToolResponse
            answer = ToolResponse(text=answer.text, image=answer.image, video=answer.video)
        return answer, reward, metrics or {}

    async def close(self) -> None:
        if self.instance_id:
            await self.settings.release(self.instance_id)


def verl_tool_spec(entry: dict[str, Any], where: str) -> ToolSpec:
    """The tool of a `{class_name, config, tool_schema}` entry.

    Raises:
        SettingsError: a key is unknown or the schema is not OpenAI's form.
        PluginError: the class is not found, is not in verl's form, or refuses its configuration.
    """
    unknown = set(entry) - {"class_name", "config", "tool_schema", "timeout_seconds"}
    if unknown:
        raise SettingsError(f"{where}: key {sorted(unknown)[0]!r} is unknown; verl's entries have config, tool_schema")
    name, config = entry["class_name"], entry.get("config") or {}
    target: Any = plugins.find("tools", name) if isinstance(name, str) else None
    missing = [method for method in ("create", "execute", "release") if not hasattr(target, method)]
    if not isinstance(target, type) or missing:
        raise PluginError(f"{where}: {name!r} is not a tool in verl's form; it lacks {', '.join(missing) or 'a class'}")
    try:
        given = entry.get("tool_schema")
        schema = None if given is None else OpenAIFunctionToolSchema.model_validate(given)
    except ValidationError as error:
        raise SettingsError(f"{where}: tool_schema: {' '.join(str(error).split())}") from None
    try:
        instance: Any = target(config=config, tool_schema=schema)
        described = instance.get_openai_tool_schema()
    except PluginError:
        raise
    except Exception as error:  # the class is the user's
        raise PluginError(f"{where}: {name} cannot be made: {type(error).__name__}: {error}") from error
    shown = json.loads(described.model_dump_json(exclude_unset=True, exclude_none=True))
    made = type(target.__name__, (VerlTool,), {"name": shown["function"]["name"], "describe": lambda settings: shown})
    return ToolSpec.of(made, instance, checked_timeout(entry.get("timeout_seconds"), where))
