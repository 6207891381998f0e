"""Annotated functions as tools: synchronous ones run off the event loop."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast, overload

from agentverl import blocking
from agentverl.errors import PluginError
from agentverl.tools.base import Tool, ToolAnswer, ToolContext
from agentverl.tools.schema import FunctionSchema, function_schema

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "agentverl_tool_name"


@overload
def tool(target: _Function) -> _Function: ...


@overload
def tool(target: str) -> Callable[[_Function], _Function]: ...


def tool(target: Any) -> Any:
    """Mark a function of a `function_tool_path` file as a tool: `@tool`, or `@tool("name")` to call it otherwise.

    Raises:
        PluginError: a parameter has no type, the docstring is missing, or there are `*args` or `**kwargs`.
    """
    if isinstance(target, str):
        return lambda function: _marked(function, target)
    return _marked(target, target.__name__)


def _marked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function_tool(function, name)  # refuses a bad signature where it is written
    setattr(function, _MARK, name)
    return function


def functions_of(module: Any) -> list[Callable[..., Any]]:
    """The functions of a module that are tools, in the order they are written.

    Those that carry `@tool`; where none does, the public ones that are defined in the module itself.
    """
    functions: list[Callable[..., Any]] = [value for value in vars(module).values() if inspect.isfunction(value)]
    marked = [function for function in functions if hasattr(function, _MARK)]
    own = [one for one in functions if one.__module__ == module.__name__ and not one.__name__.startswith("_")]
    return marked or own


class FunctionTool(Tool):
    """Calls one function; made by `function_tool`, a subclass a function."""

    function: ClassVar[Callable[..., Any]]
    described: ClassVar[FunctionSchema]
    is_async: ClassVar[bool]

    @classmethod
    def describe(cls, settings: Any) -> FunctionSchema:
        return cls.described

    async def call(self, **arguments: Any) -> ToolAnswer:
        """Call the function with the checked arguments, and the context where it asks for one."""
        if self.described.context_parameter is not None:
            arguments[self.described.context_parameter] = self.context
        function = type(self).function
        if self.is_async:
            answer = await function(**arguments)
        else:
            answer = await blocking.call(function, **arguments)
            if inspect.isawaitable(answer):
                answer = await answer
        return cast(ToolAnswer, answer)


def function_tool(function: Callable[..., Any], name: str | None = None) -> type[FunctionTool]:
    """The tool class that calls `function`, under the name of its mark, its own, or the one given.

    Raises:
        PluginError: the signature cannot be described to a model; says which parameter and what to write.
    """
    if not callable(function):
        raise PluginError(f"a function tool must be a function, not {type(function).__name__}")
    shown = str(name or getattr(function, _MARK, None) or getattr(function, "__name__", type(function).__name__))
    described = function_schema(function, name=shown, context_type=ToolContext)
    members = {
        "name": shown,
        "function": staticmethod(function),
        "described": described,
        "is_async": inspect.iscoroutinefunction(function),
        "__doc__": function.__doc__,
    }
    return type(f"{shown}_tool", (FunctionTool,), members)
