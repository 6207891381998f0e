"""A tool as the Chat sees it: opened for one trajectory, with its schema, its deadline and every error an answer."""

import inspect
import json
import logging
import traceback
from typing import Any

from agentverl import blocking
from agentverl.deadlines import bounded
from agentverl.errors import BoundaryError, ToolError
from agentverl.messages import ToolResponse
from agentverl.tools.base import Tool
from agentverl.tools.schema import FunctionSchema

logger = logging.getLogger(__name__)
_warned: set[tuple[str, str, str, int | None]] = set()


class BoundTool:
    """One tool of one trajectory.

    `ToolResponse.error` says what kind of answer a failed call got: `invalid_arguments`, `tool_error`, `timeout` or
    `exception`.
    """

    def __init__(
        self,
        tool: Tool,
        schema: dict[str, Any],
        *,
        checker: FunctionSchema | None,
        timeout_seconds: float | None,
    ) -> None:
        self.tool = tool
        self.name: str = schema["function"]["name"]
        self.schema = schema
        self.timeout_seconds = timeout_seconds
        self._checker = checker
        self._is_async = inspect.iscoroutinefunction(tool.call)

    async def call(self, arguments: dict[str, Any]) -> ToolResponse:
        """Check the arguments, call the tool, and turn whatever comes into an answer.

        Raises:
            BoundaryError: the tool raised an InfrastructureError (or another error of a boundary): not an answer.
        """
        if self._checker is not None:
            try:
                arguments = self._checker.checked(arguments)
            except ToolError as error:
                return _refused(str(error), "invalid_arguments")
        try:
            seconds = None if blocking.inline else self.timeout_seconds
            return as_response(await bounded(self._called(arguments), seconds))
        except ToolError as error:
            return _refused(str(error), "tool_error")
        except TimeoutError as error:
            return _refused(f"{self.name} timed out: {error or 'no answer in time'}", "timeout")
        except BoundaryError:
            raise
        except Exception as error:  # a tool may raise anything; the model is told and the kind is counted
            _warn_once(self.name, error)
            return _refused(f"{self.name} failed: {type(error).__name__}: {error}", "exception")

    async def _called(self, arguments: dict[str, Any]) -> Any:
        if self._is_async:
            return await self.tool.call(**arguments)
        answer: Any = await blocking.call(self.tool.call, **arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def close(self) -> None:
        """Close the tool, whose trajectory is over."""
        await self.tool.close()


def _warn_once(name: str, error: Exception) -> None:
    """With a traceback for each place that raises; how often it does is in the metrics."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = (name, type(error).__name__, last.filename, last.lineno)
    if place not in _warned:
        _warned.add(place)
        logger.warning(
            "tool %s raised; the model is told, and further errors from there only count", name, exc_info=error
        )


def _refused(text: str, kind: str) -> ToolResponse:
    return ToolResponse(text=f"error: {text}", error=kind)


def as_response(answer: Any) -> ToolResponse:
    """A call's return value as a ToolResponse: text, numbers, what becomes JSON, `(answer, reward[, metrics])`.

    Raises:
        TypeError: the value is none of these.
    """
    if isinstance(answer, ToolResponse):
        return answer
    if isinstance(answer, str):
        return ToolResponse(text=answer)
    if answer is None:
        return ToolResponse(text="")
    if isinstance(answer, tuple) and len(answer) in (2, 3):
        response = as_response(answer[0])
        response.reward = None if answer[1] is None else float(answer[1])
        response.metrics = {**response.metrics, **(answer[2] if len(answer) == 3 else {})}
        return response
    if isinstance(answer, bool | int | float | dict | list):
        return ToolResponse(text=json.dumps(answer, ensure_ascii=False))
    raise TypeError(f"a tool returned {type(answer).__name__}; expected str, number, dict, list or ToolResponse")
