"""The calculator is exact, never evaluates code, and says what it does not understand."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import ToolError
from agentverl.messages import ToolResponse
from agentverl.tools.base import ToolContext
from agentverl.tools.calculator import Calculator, evaluate, written
from agentverl.tools.toolset import Toolset, ToolSpec


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("37 * 48", "1776"),
        ("5 - 9", "-4"),
        ("0.1 + 0.2", "0.3"),
        ("(1 + 2) * -3", "-9"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("1 / 3", "0.333333333333"),
        ("2 / 3", "0.666666666667"),
        ("1e3 + 1", "1001"),
        ("37 \N{MULTIPLICATION SIGN} 48", "1776"),
        ("123456789.123456789 * 10", "1234567891.23456789"),
        ("0.1 - 0.2", "-0.1"),
        (" 12345678901234567890 * 98765432109876543210 ", "1219326311370217952237463801111263526900"),
    ],
)
def test_answers_exactly(expression: str, answer: str) -> None:
    assert written(evaluate(expression)) == answer


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "is empty"),
        ("1 / 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("2 ^ 10", r"write powers with \*\*"),
        ("1,000 + 1", "write 1000"),
        ("37 * 48 = 1776", "not an arithmetic expression"),
        ("1 == 1", "only the left side"),
        ("x + 1", "'x' is not understood"),
        ("__import__('os').system('true')", "is not understood"),
        ("(lambda: 1)()", "is not understood"),
        ("True + 1", "'True' is not understood"),
        ("'a' * 3", "is not understood"),
        ("3 *", "not an arithmetic expression"),
        ("9 ** 9 ** 9", "too large"),
        ("1e999999999", "exponents go to 1000"),
        ("2 ** 0.5", "whole exponents"),
        ("9" * 600, "at most 500"),
        ("(" * 400 + "1" + ")" * 99, "not an arithmetic|nested|read"),
        ("-" * 499 + "1", ""),
        ("1\x00", "null byte|not an arithmetic"),
    ],
)
def test_says_what_it_does_not_understand(expression: str, said: str) -> None:
    if said:
        with pytest.raises(ToolError, match=said):
            evaluate(expression)
    else:
        assert evaluate(expression) in (1, -1)


@given(st.text(alphabet="0123456789.+-*/%()eE_ ^,xj", max_size=30))
def test_any_text_has_a_value_or_a_tool_error(expression: str) -> None:
    try:
        value = evaluate(expression)
    except ToolError:
        return
    assert isinstance(value, Fraction)
    assert written(value)


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30), st.sampled_from("+-*"))
def test_integers_agree_with_python(left: int, right: int, operator: str) -> None:
    expected = {"+": left + right, "-": left - right, "*": left * right}[operator]
    assert written(evaluate(f"{left} {operator} {right}")) == str(expected)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**9), max_value=10**9))
def test_decimals_are_written_as_they_are(value: Decimal) -> None:
    assert Decimal(written(evaluate(str(value)))) == value


async def test_is_called_through_its_schema() -> None:
    toolset = Toolset([ToolSpec.of(Calculator)])
    assert toolset.schemas == [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Evaluate an arithmetic expression.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string", "description": "such as 37 * 48"}},
                    "required": ["expression"],
                },
            },
        }
    ]
    bound = (await toolset.open(ToolContext()))["calculator"]
    assert await bound.call({"expression": "37 * 48"}) == ToolResponse(text="1776")
    assert await bound.call({"expression": 1776}) == ToolResponse(text="1776")
    refused = await bound.call({"expr": "1"})
    assert refused.error == "invalid_arguments"
    assert refused.text == (
        "error: invalid arguments for calculator: argument 'expression' is missing; argument 'expr' is unknown "
        "(did you mean 'expression'?). It takes: expression (string)"
    )
    assert (await bound.call({"expression": "1/0"})).error == "tool_error"
