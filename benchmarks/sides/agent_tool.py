"""The tool that both sides of `agent_loop` call, marked for whichever of the two is installed."""

try:
    from verl.tools.function_tool import function_tool as mark

    mark = mark("add")
except ImportError:
    from agentverl.tools.function_tool import tool as mark


@mark
async def add(a: int, b: int) -> str:
    """Add two integers.

    Args:
        a: the first number.
        b: the second number.
    """
    return f"The sum of {a} and {b} is {a + b}."
