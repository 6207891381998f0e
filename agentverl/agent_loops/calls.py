"""Calls carried out: each by the tool of its name, else by the environment, and every error an answer."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentverl.agent_loops.protocols import BoundTool, World
from agentverl.deadlines import Deadline, contained
from agentverl.errors import BadInputError, BoundaryError, ToolError
from agentverl.messages import Message, ToolCall, ToolResponse, text_of

ERROR_KINDS = (
    "malformed",
    "unknown_tool",
    "invalid_arguments",
    "too_many_calls",
    "tool_error",
    "timeout",
    "exception",
)
"""Values of `ToolResponse.error`."""
INVALID_KINDS = frozenset({"malformed", "unknown_tool", "invalid_arguments"})
"""Kinds of `ToolResponse.error` that mean that the call itself was wrong."""


@dataclass(slots=True)
class Outcome:
    """What an environment answered to an action."""

    messages: list[Message]
    reward: float | None = None
    done: bool = False
    error: str | None = None
    state_key: str | None = None


async def step(world: World, action: Message, deadline: Deadline) -> Outcome:
    """One step of the environment; what it raises is an answer, unless it is a failure of the infrastructure."""
    try:
        async with asyncio.timeout(deadline.remaining_seconds) as timeout:
            result = await contained(world.step(action))
    except (BoundaryError, BadInputError):
        raise
    except TimeoutError as error:
        text = "the environment did not answer in time" if timeout.expired() else f"TimeoutError: {error}"
        return Outcome([{"role": "user", "content": f"error: {text}"}], error="timeout")
    except ToolError as error:
        return Outcome([{"role": "user", "content": f"error: {error}"}], error="tool_error")
    except Exception as error:  # the action may have caused it, so that crashing the world is no way out
        text = f"error: {type(error).__name__}: {error}"
        return Outcome([{"role": "user", "content": text}], error="exception")
    if not hasattr(result, "observation"):
        name, kind = type(world).__name__, type(result).__name__
        raise BoundaryError(f"{name}.step returned {kind}; expected a Step", "environment")
    state_key = getattr(result.observation, "state_key", None)
    return Outcome(as_messages(result.observation), result.reward, bool(result.done), state_key=state_key)


def as_messages(observation: Any) -> list[Message]:
    """An observation's messages: of an object with `messages`, a list of messages, one message, a text, or nothing."""
    found = getattr(observation, "messages", observation)
    if found is None or found == "":
        return []
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return [dict(found)] if isinstance(found, Mapping) else [dict(message) for message in found]


class CallRunner:
    """Carries out the calls of one reply: up to `max_parallel` at the same time, the others refused."""

    def __init__(self, tools: Mapping[str, BoundTool], world: World | None, max_parallel: int) -> None:
        self._tools = tools
        self._world = world
        self._max_parallel = max_parallel
        self._world_turn = asyncio.Lock()

    async def run(self, calls: Sequence[ToolCall], deadline: Deadline) -> list[ToolResponse]:
        """One answer a call, in call order.

        Raises:
            BoundaryError: a tool or the environment failed without the policy's doing; the other calls are cancelled.
        """
        first, rest = calls[: self._max_parallel], calls[self._max_parallel :]
        answers = await self._together(first, deadline)
        noun = "call" if self._max_parallel == 1 else "calls"
        refusal = f"error: not executed, at most {self._max_parallel} {noun} per turn are carried out; call again"
        return answers + [ToolResponse(text=refusal, error="too_many_calls") for _ in rest]

    async def _together(self, calls: Sequence[ToolCall], deadline: Deadline) -> list[ToolResponse]:
        if len(calls) == 1:
            return [await self._answer(calls[0], deadline)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(call, deadline)) for call in calls]
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        return [task.result() for task in tasks]

    async def _answer(self, call: ToolCall, deadline: Deadline) -> ToolResponse:
        if call.error is not None:
            return ToolResponse(text=f"error: {call.error}", error="malformed")
        tool = self._tools.get(call.name)
        if tool is not None:
            return await _call(tool, call.arguments, deadline)
        if self._world is None:
            return self._unknown(call.name)
        async with self._world_turn:
            action = {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]}
            outcome = await step(self._world, action, deadline)
        text = "\n".join(text_of(message) for message in outcome.messages)
        return ToolResponse(
            text=text, reward=outcome.reward, done=outcome.done, error=outcome.error, state_key=outcome.state_key
        )

    def _unknown(self, name: str) -> ToolResponse:
        available = ", ".join(sorted(self._tools)) or "none"
        return ToolResponse(text=f"error: there is no tool {name!r}; available: {available}", error="unknown_tool")


async def _call(tool: BoundTool, arguments: dict[str, Any], deadline: Deadline) -> ToolResponse:
    remaining = deadline.remaining_seconds
    if remaining is None or (tool.timeout_seconds is not None and tool.timeout_seconds < remaining):
        return await tool.call(arguments)  # the tool's own time is up first
    try:
        async with asyncio.timeout(remaining):
            return await tool.call(arguments)
    except TimeoutError:
        return ToolResponse(text="error: the call did not end before the deadline of the episode", error="timeout")


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
