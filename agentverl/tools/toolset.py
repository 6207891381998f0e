"""The tools of a run: set up once a process, opened for each trajectory, always closed."""

import asyncio
import inspect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentverl.errors import AgentverlError, DatasetError, InfrastructureError, SettingsError
from agentverl.tools.base import Tool, ToolContext
from agentverl.tools.bound import BoundTool
from agentverl.tools.schema import FunctionSchema

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool of the configuration, described and checked."""

    name: str
    schema: dict[str, Any]
    """OpenAI's function form."""
    tool_class: type[Tool]
    settings: Any = None
    checker: FunctionSchema | None = None
    timeout_seconds: float | None = None

    @classmethod
    def of(cls, tool_class: type[Tool], settings: Any = None, timeout_seconds: float | None = None) -> "ToolSpec":
        """The spec of a tool class; without settings, the defaults of its own model.

        Raises:
            PluginError: `call` cannot be described to a model.
        """
        settings = tool_class.Settings() if settings is None else settings
        described = tool_class.describe(settings)
        checker = described if isinstance(described, FunctionSchema) else None
        schema = described.openai if isinstance(described, FunctionSchema) else described
        return cls(
            name=schema["function"]["name"],
            schema=schema,
            tool_class=tool_class,
            settings=settings,
            checker=checker,
            timeout_seconds=timeout_seconds,
        )


class Toolset:
    """Makes the tools of trajectories; `setup` before the first, `teardown` after the last.

    `default_timeout_seconds` is for tools whose entry has no timeout of its own.
    """

    def __init__(self, specs: Iterable[ToolSpec] = (), *, default_timeout_seconds: float | None = None) -> None:
        self.specs: dict[str, ToolSpec] = {spec.name: spec for spec in specs}
        self._default_timeout_seconds = default_timeout_seconds
        self._resources: dict[str, Any] = {}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The schemas of all tools, in the order of the configuration."""
        return [spec.schema for spec in self.specs.values()]

    async def setup(self) -> None:
        """Make the shared resources of each tool; those made already are given back when one fails.

        Raises:
            InfrastructureError: a tool could not be set up (boundary "tool").
        """
        for name, spec in self.specs.items():
            try:
                self._resources[name] = await spec.tool_class.setup(spec.settings)
            except BaseException as error:
                await self.teardown()
                if isinstance(error, AgentverlError) or not isinstance(error, Exception):
                    raise
                reason = f"{type(error).__name__}: {error}"
                raise InfrastructureError(f"tool {name!r} could not be set up: {reason}", "tool") from error

    async def teardown(self) -> None:
        """Give the shared resources back; an error of one keeps no other from it."""
        while self._resources:
            name, resources = self._resources.popitem()
            try:
                await self.specs[name].tool_class.teardown(resources)
            except Exception:  # the run is over; the next resource still has to go
                logger.warning("teardown of tool %s failed", name, exc_info=True)

    def check_task(self, tools_kwargs: Mapping[str, Any]) -> None:
        """Hold a row's `tools_kwargs` against what the tools' `open` takes.

        Raises:
            DatasetError: they do not fit a tool.
        """
        for name, spec in self.specs.items():
            _task_of(name, tools_kwargs, spec.tool_class)

    async def open(self, context: ToolContext, tools_kwargs: Mapping[str, Any] | None = None) -> dict[str, BoundTool]:
        """One instance of each tool for a trajectory, by name; `tools_kwargs` are the row's, by tool name.

        Raises:
            DatasetError: the row's `tools_kwargs` do not fit a tool's `open`.
            InfrastructureError: a tool could not be opened (boundary "tool"); those opened before it are closed.
        """
        bound: dict[str, BoundTool] = {}
        try:
            for name, spec in self.specs.items():
                tool = spec.tool_class(spec.settings, self._resources.get(name))
                tool.context = context
                task = _task_of(name, tools_kwargs or {}, spec.tool_class)
                seconds = spec.timeout_seconds or self._default_timeout_seconds
                bound[name] = BoundTool(tool, spec.schema, checker=spec.checker, timeout_seconds=seconds)
                await _opened(name, tool, context, task)
        except BaseException:
            await close_all(bound)
            raise
        return bound


def checked_timeout(value: Any, where: str) -> float | None:
    """An entry's `timeout_seconds`.

    Raises:
        SettingsError: it is no number above 0.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise SettingsError(f"{where}: timeout_seconds must be a number above 0, not {value!r}")
    return float(value)


async def close_all(bound: Mapping[str, BoundTool]) -> None:
    """Close the tools of a trajectory at the same time; an error of one is logged and keeps no other open."""
    results = await asyncio.gather(*(one.close() for one in bound.values()), return_exceptions=True)
    for name, result in zip(bound, results, strict=True):
        if isinstance(result, Exception):
            logger.warning("closing tool %s failed", name, exc_info=result)


def _task_of(name: str, tools_kwargs: Mapping[str, Any], tool_class: type[Tool]) -> dict[str, Any]:
    entry = tools_kwargs.get(name) or {}
    if not isinstance(entry, Mapping):
        raise DatasetError(f"tools_kwargs of the row hold {entry!r} for tool {name!r}; expected a mapping")
    task = entry.get("create_kwargs", entry) or {}  # verl nests them under `create_kwargs`
    if tool_class.open is Tool.open:  # takes anything; binding costs more than opening
        return dict(task)
    try:
        inspect.signature(tool_class.open).bind(None, None, **task)
    except TypeError as error:
        raise DatasetError(f"tools_kwargs of the row do not fit tool {name!r}: {error}") from None
    return dict(task)


async def _opened(name: str, tool: Tool, context: ToolContext, task: dict[str, Any]) -> None:
    try:
        await tool.open(context, **task)
    except (InfrastructureError, asyncio.CancelledError):
        raise
    except Exception as error:  # a tool that does not open answers to nothing that the policy did
        raise InfrastructureError(f"tool {name!r} did not open: {type(error).__name__}: {error}", "tool") from error
