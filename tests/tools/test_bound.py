"""Whatever a tool does becomes an answer in time, except a failure of the infrastructure."""

import asyncio
import time
from typing import Any, ClassVar

import pytest

from agentverl.errors import DatasetError, InfrastructureError, ToolError
from agentverl.messages import ToolResponse
from agentverl.tools.base import Tool, ToolAnswer, ToolContext
from agentverl.tools.bound import BoundTool, as_response
from agentverl.tools.function_tool import function_tool
from agentverl.tools.toolset import Toolset, ToolSpec, close_all


class Misbehaving(Tool):
    events: ClassVar[list[str]] = []

    async def call(self, behaviour: str) -> ToolAnswer:
        """Do what is asked."""
        if behaviour == "hang":
            await asyncio.sleep(60)
        if behaviour == "stubborn":
            for _ in range(2):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.events.append("swallowed")
        if behaviour == "raise":
            raise KeyError("missing")
        if behaviour == "refuse":
            raise ToolError("no such file")
        if behaviour == "lost":
            raise InfrastructureError("server is gone", "tool")
        if behaviour == "huge":
            return "x" * 10_000_000
        return behaviour

    async def close(self) -> None:
        self.events.append("closed")


async def bound_of(tool_class: type[Tool], timeout_seconds: float | None = None) -> BoundTool:
    toolset = Toolset([ToolSpec.of(tool_class, timeout_seconds=timeout_seconds)])
    return next(iter((await toolset.open(ToolContext())).values()))


@pytest.mark.parametrize(
    ("behaviour", "text", "error"),
    [
        ("fine", "fine", None),
        ("raise", "error: misbehaving failed: KeyError: 'missing'", "exception"),
        ("refuse", "error: no such file", "tool_error"),
        ("hang", "error: misbehaving timed out: no answer within 0.05 seconds", "timeout"),
    ],
)
async def test_errors_are_answers(behaviour: str, text: str, error: str | None) -> None:
    tool = await bound_of(Misbehaving, timeout_seconds=0.05)
    response = await tool.call({"behaviour": behaviour})
    assert (response.text, response.error) == (text, error)


async def test_an_infrastructure_error_is_no_answer() -> None:
    with pytest.raises(InfrastructureError, match="server is gone"):
        await (await bound_of(Misbehaving)).call({"behaviour": "lost"})


async def test_a_tool_that_swallows_its_cancellation_is_left_behind() -> None:
    Misbehaving.events.clear()
    started = time.monotonic()
    response = await (await bound_of(Misbehaving, timeout_seconds=0.05)).call({"behaviour": "stubborn"})
    assert response.error == "timeout"
    assert Misbehaving.events == ["swallowed"]
    assert time.monotonic() - started < 3


async def test_a_cancelled_caller_cancels_the_call() -> None:
    ended = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    tool = await bound_of(function_tool(wait))
    task = asyncio.create_task(tool.call({}))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_huge_answer_comes_whole() -> None:
    response = await (await bound_of(Misbehaving)).call({"behaviour": "huge"})
    assert response.text is not None
    assert len(response.text) == 10_000_000


async def test_synchronous_functions_do_not_hold_the_loop_and_time_out() -> None:
    def slow(seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "woke"

    tool = await bound_of(function_tool(slow), timeout_seconds=0.3)
    started = time.monotonic()
    answers = await asyncio.gather(*(tool.call({"seconds": 0.1}) for _ in range(4)))
    assert [answer.text for answer in answers] == ["woke"] * 4
    assert time.monotonic() - started < 0.35
    assert (await tool.call({"seconds": 1})).error == "timeout"


async def test_a_function_may_use_the_context() -> None:
    def roll(sides: int, context: ToolContext) -> int:
        """Roll a die."""
        return context.random.randint(1, sides)

    response = await (await bound_of(function_tool(roll))).call({"sides": 1})
    assert response.text == "1"


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("text", ToolResponse(text="text")),
        (None, ToolResponse(text="")),
        (3, ToolResponse(text="3")),
        (0.5, ToolResponse(text="0.5")),
        (True, ToolResponse(text="true")),
        ({"a": "é"}, ToolResponse(text='{"a": "é"}')),
        ([1, 2], ToolResponse(text="[1, 2]")),
        (("text", 0.5), ToolResponse(text="text", reward=0.5)),
        (({"a": 1}, 1, {"m": 2.0}), ToolResponse(text='{"a": 1}', reward=1.0, metrics={"m": 2.0})),
        (ToolResponse(text="x", done=True), ToolResponse(text="x", done=True)),
    ],
)
def test_returns_are_normalised(answer: Any, response: ToolResponse) -> None:
    assert as_response(answer) == response


def test_a_return_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="returned set"):
        as_response({1})


class Counted(Tool):
    """Counts."""

    log: ClassVar[list[str]] = []

    @classmethod
    async def setup(cls, settings: Any) -> Any:
        cls.log.append("setup")
        return {"shared": 7}

    @classmethod
    async def teardown(cls, resources: Any) -> None:
        cls.log.append(f"teardown {resources}")

    async def open(self, context: ToolContext, *, start: int = 0) -> None:
        self.count = start

    async def call(self) -> int:
        self.count += 1
        return self.count + int(self.resources["shared"])

    async def close(self) -> None:
        self.log.append("close")
        raise RuntimeError("close fails")


async def test_resources_are_shared_and_state_is_a_trajectory_s_own() -> None:
    Counted.log.clear()
    toolset = Toolset([ToolSpec.of(Counted)])
    await toolset.setup()
    first = await toolset.open(ToolContext(), {"counted": {"create_kwargs": {"start": 10}}})
    second = await toolset.open(ToolContext(), {"counted": {"start": 20}})
    assert [(await one["counted"].call({})).text for one in (first, first, second)] == ["18", "19", "28"]
    await close_all(first)
    await close_all(second)
    await toolset.teardown()
    assert Counted.log == ["setup", "close", "close", "teardown {'shared': 7}"]


async def test_a_row_that_does_not_fit_open_is_the_dataset_s_error() -> None:
    toolset = Toolset([ToolSpec.of(Counted)])
    with pytest.raises(DatasetError, match=r"do not fit tool 'counted'.*begin"):
        await toolset.open(ToolContext(), {"counted": {"begin": 1}})


async def test_a_tool_that_does_not_open_fails_the_trajectory_and_the_others_are_closed() -> None:
    class Closed(Tool):
        """Cannot open."""

        async def open(self, context: ToolContext) -> None:
            raise OSError("no server")

        async def call(self) -> None:
            return None

    Misbehaving.events.clear()
    toolset = Toolset([ToolSpec.of(Misbehaving), ToolSpec.of(Closed)])
    with pytest.raises(InfrastructureError, match="tool 'closed' did not open: OSError: no server"):
        await toolset.open(ToolContext())
    assert Misbehaving.events == ["closed"]
