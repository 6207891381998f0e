"""Which tools a run has: the YAML of `multi_turn.tool_config_path` and the file of `multi_turn.function_tool_path`."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from agentverl import plugins
from agentverl.errors import BadInputError, PluginError, SettingsError
from agentverl.tools.base import Tool
from agentverl.tools.function_tool import function_tool, functions_of
from agentverl.tools.toolset import ToolSpec, checked_timeout
from agentverl.tools.verl import verl_tool_spec

_EXAMPLE = "expected `tools: [{tool: calculator, timeout_seconds: 5}]`"


def load_tools(
    tool_config_path: str | Path | None = None, function_tool_path: str | Path | None = None
) -> list[ToolSpec]:
    """The tools of both files, in order, each described and its settings checked.

    Raises:
        SettingsError: a file is missing or is not of the expected form, a setting is wrong, two tools share a name.
        PluginError: a tool is not found, does not import, or cannot be described to a model.
    """
    specs: list[ToolSpec] = []
    if tool_config_path is not None:
        specs += tools_of_entries(_entries(Path(tool_config_path)), str(tool_config_path))
    if function_tool_path is not None:
        specs += _tools_of_file(Path(function_tool_path))
    _refuse_duplicates(specs)
    return specs


def tools_of_entries(entries: Sequence[Any], where: str = "tools") -> list[ToolSpec]:
    """The tools of a list as it stands in the YAML; `where` begins the messages of errors."""
    specs: list[ToolSpec] = []
    problems: list[BadInputError] = []
    for index, entry in enumerate(entries):
        try:
            specs.append(_tool_of_entry(entry, f"{where}: tools[{index}]"))
        except BadInputError as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise SettingsError("; ".join(map(str, problems)))
    return specs


def _entries(path: Path) -> list[Any]:
    if not path.is_file():
        raise SettingsError(f"multi_turn.tool_config_path: {path} is not a file; {_EXAMPLE}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or "tools" not in content:
        found = f"keys {', '.join(map(str, content))}" if isinstance(content, dict) else type(content).__name__
        raise SettingsError(f"{path} holds {found}, no key `tools`; {_EXAMPLE}")
    if len(content) > 1:
        raise SettingsError(f"{path}: key {next(key for key in content if key != 'tools')!r} is unknown; {_EXAMPLE}")
    if not isinstance(content["tools"], list) or not content["tools"]:
        raise SettingsError(f"{path}: `tools` must be a list of at least one tool; {_EXAMPLE}")
    return content["tools"]


def _tool_of_entry(entry: Any, where: str) -> ToolSpec:
    if isinstance(entry, str):
        entry = {"tool": entry}
    if not isinstance(entry, dict):
        raise SettingsError(
            f"{where} is {type(entry).__name__} {entry!r}; expected a mapping such as {{tool: calculator}}"
        )
    if ("tool" in entry) == ("class_name" in entry):
        got = "both" if "tool" in entry else f"neither (its keys: {', '.join(map(str, entry)) or 'none'})"
        raise SettingsError(f"{where} must have either `tool` or verl's `class_name`; it has {got}")
    if "class_name" in entry:
        return verl_tool_spec(entry, where)
    settings = dict(entry)
    name, timeout_seconds = settings.pop("tool"), settings.pop("timeout_seconds", None)
    if not isinstance(name, str):
        raise SettingsError(f"{where}: `tool` must be a name or an import path, not {name!r}")
    try:
        found = plugins.find("tools", name)
    except PluginError as error:
        raise PluginError(f"{where}: {error}") from error
    tool_class = as_tool_class(found, f"{where}: {name!r}")
    checked = plugins.checked_settings(tool_class.Settings, settings, f"{where} ({name})", ["timeout_seconds"])
    return ToolSpec.of(tool_class, checked, checked_timeout(timeout_seconds, where))


def as_tool_class(target: Any, where: str) -> type[Tool]:
    """A plugin's object as a tool class: a Tool itself, or a function that becomes one.

    Raises:
        PluginError: it is neither.
    """
    if inspect.isclass(target) and issubclass(target, Tool):
        if inspect.isabstract(target):
            raise PluginError(f"{where} does not define `async def call`")
        return target
    if inspect.isfunction(target):
        return function_tool(target)
    kind = f"class {target.__name__}" if inspect.isclass(target) else type(target).__name__
    raise PluginError(f"{where} is a {kind}; expected a subclass of agentverl.Tool or an annotated function")


def _tools_of_file(path: Path) -> list[ToolSpec]:
    if not path.is_file() or path.suffix != ".py":
        raise SettingsError(f"multi_turn.function_tool_path: {path} is not a Python file")
    functions: list[Callable[..., Any]] = functions_of(plugins.load_module("tools", str(path)))
    if not functions:
        raise PluginError(f"{path} has no function; expected annotated functions, each a tool")
    return [ToolSpec.of(function_tool(function)) for function in functions]


def _refuse_duplicates(specs: Sequence[ToolSpec]) -> None:
    seen: dict[str, ToolSpec] = {}
    for spec in specs:
        if spec.name in seen:
            first, second = (one.tool_class.__qualname__ for one in (seen[spec.name], spec))
            raise SettingsError(f"two tools are called {spec.name!r} ({first} and {second}); give one another name")
        seen[spec.name] = spec
