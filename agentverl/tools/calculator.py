"""A calculator: exact arithmetic on integers and decimals, read from Python's syntax tree, never evaluated."""

import ast
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

from pydantic import Field

from agentverl.errors import ToolError
from agentverl.tools.base import Tool, ToolSettings

_MAX_CHARACTERS = 500
_MAX_BITS = 4096
_UNDERSTOOD = "only numbers, parentheses and + - * / // % ** are understood"
_WRITTEN_OTHERWISE = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
    }
)

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: lambda left, right: left % right,
}


class CalculatorSettings(ToolSettings):
    significant_digits: int = Field(12, ge=1, le=100)
    """Digits of a result that no finite decimal writes exactly, such as 1 / 3."""


class Calculator(Tool):
    """Exact arithmetic; a result that is an integer or a finite decimal is never rounded."""

    name = "calculator"
    Settings = CalculatorSettings

    async def call(self, expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: such as 37 * 48
        """
        return written(evaluate(expression), self.settings.significant_digits)


def evaluate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression.

    Raises:
        ToolError: it is not arithmetic, divides by zero, or its numbers are too large; the text is for the model.
    """
    text = expression.strip().translate(_WRITTEN_OTHERWISE)
    if not text:
        raise ToolError("the expression is empty; write something like 37 * 48")
    if len(text) > _MAX_CHARACTERS:
        raise ToolError(f"the expression has {len(text)} characters; at most {_MAX_CHARACTERS} are allowed")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ToolError(f"{text!r} is not an arithmetic expression: {error.msg}; {_UNDERSTOOD}") from None
    except (ValueError, MemoryError, RecursionError):
        raise ToolError("the expression cannot be read; it is nested too deeply or holds a null byte") from None
    try:
        return _value(tree.body, text)
    except RecursionError:
        raise ToolError("the expression is nested too deeply") from None
    except ZeroDivisionError:
        raise ToolError(f"{text!r} divides by zero") from None


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _number(node, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, text)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, text), _value(right, text))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
            return _bounded(_BINARY[type(operator)](_value(left, text), _value(right, text)))
        case ast.BinOp(op=ast.BitXor()):
            raise ToolError(f"^ is not understood; write powers with **, such as 2 ** 10; {_UNDERSTOOD}")
        case ast.Tuple():
            raise ToolError(f"a comma is not understood; write 1000, not 1,000; {_UNDERSTOOD}")
        case ast.Compare():
            raise ToolError(f"= and comparisons are not understood; write only the left side; {_UNDERSTOOD}")
    found = ast.get_source_segment(text, node) or type(node).__name__
    raise ToolError(f"{found!r} is not understood; {_UNDERSTOOD}")


def _number(node: ast.Constant, text: str) -> Fraction:
    if isinstance(node.value, int):
        return _bounded(Fraction(node.value))
    digits = (ast.get_source_segment(text, node) or repr(node.value)).replace("_", "")
    exponent = re.search(r"[eE]([+-]?\d+)$", digits)
    if exponent and abs(int(exponent[1])) > 1000:
        raise ToolError(f"{digits} is too large or too small; exponents go to 1000")
    return _bounded(Fraction(digits))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("only whole exponents are understood: a ** 2, not a ** 0.5")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits > 1 and abs(exponent.numerator) * (bits - 1) > _MAX_BITS:
        raise ToolError(f"the power is too large: results go to about {_MAX_BITS * 3 // 10} digits")
    return _bounded(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ToolError(f"the number is too large: numbers go to about {_MAX_BITS * 3 // 10} digits")
    return value


def written(value: Fraction, significant_digits: int = 12) -> str:
    """A value in decimal: exact where it has a finite decimal of at most 100 places, else rounded."""
    if value.denominator == 1:
        return str(value.numerator)
    places, rest = 0, value.denominator
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest //= prime
            count += 1
        places = max(places, count)
    if rest == 1 and places <= 100:
        scaled = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
        return f"{'-' if value < 0 else ''}{scaled[:-places]}.{scaled[-places:]}"
    rounded = Context(prec=significant_digits).divide(Decimal(value.numerator), Decimal(value.denominator))
    return format(rounded, "f") if abs(rounded.adjusted()) <= 100 else str(rounded)
