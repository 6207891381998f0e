"""Tests of programs, turned into an input that goes into the sandbox and an output that is compared outside of it."""

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Runs in the sandbox. The answer is the last line, so that what a solution prints does not count.
_CALL = """\
import json, runpy, sys
request = json.loads(sys.stdin.read())
names = runpy.run_path("solution.py", run_name="solution")
if request["expression"] is not None:
    value = eval(request["expression"], names)
else:
    function = names.get(request["function"]) or getattr(names["Solution"](), request["function"])
    value = function(*request["arguments"])
print()
print(repr(value))
"""
_PROGRAM = """\
import runpy
runpy.run_path("solution.py", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test: what the driver is given, and what has to come of it."""

    stdin: str
    expected: Any
    is_call: bool

    @property
    def driver(self) -> str:
        """The program that runs the solution."""
        return _CALL if self.is_call else _PROGRAM

    def passes(self, stdout: str) -> bool:
        """Whether a program's output is the expected one: a value, or lines with spaces at their ends left out."""
        if not self.is_call:
            return _lines(stdout) == _lines(str(self.expected))
        try:
            return _equal(ast.literal_eval(stdout.strip().rpartition("\n")[2]), self.expected)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return False


def read_tests(given: Any) -> list[CodeTest]:
    """Tests in one of three forms, as objects or in JSON.

    - `{"inputs": [...], "outputs": [...]}`: standard input and output of a program;
    - the same with `"fn_name"`: lists of arguments (or one JSON line for each) and values of a function;
    - `["assert f(2) == 4", ...]`, or one text with such lines: calls compared with literal values.

    Raises:
        ValueError: there are none, or they have another form.
    """
    if isinstance(given, str) and given.lstrip().startswith(("{", "[")):
        given = json.loads(given)
    if isinstance(given, str):
        given = [line for line in given.splitlines() if line.strip()]
    tests = _of_pairs(given) if isinstance(given, Mapping) else [_of_assertion(str(line)) for line in given or ()]
    if not tests:
        raise ValueError("the ground truth holds no tests")
    return tests


def _of_pairs(given: Mapping[str, Any]) -> list[CodeTest]:
    inputs, outputs = given.get("inputs"), given.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("tests need `inputs` and `outputs`, two lists of the same length")
    name = given.get("fn_name")
    if name is None:
        return [CodeTest(_text(one), _text(other), False) for one, other in zip(inputs, outputs, strict=True)]
    return [_of_call(str(name), one, other) for one, other in zip(inputs, outputs, strict=True)]


def _of_call(name: str, arguments: Any, value: Any) -> CodeTest:
    if isinstance(arguments, str):  # a JSON line for each argument
        arguments = [json.loads(line) for line in arguments.splitlines()]
        value = json.loads(value) if isinstance(value, str) else value
    request = {"function": name, "arguments": arguments, "expression": None}
    return CodeTest(json.dumps(request), value, True)


def _of_assertion(line: str) -> CodeTest:
    try:
        statement = ast.parse(line.strip()).body[0]
        assert isinstance(statement, ast.Assert)
        comparison = statement.test
        assert isinstance(comparison, ast.Compare)
        assert isinstance(comparison.ops[0], ast.Eq | ast.Is)
        assert len(comparison.ops) == 1
        expected = ast.literal_eval(comparison.comparators[0])
    except (SyntaxError, ValueError, AssertionError, IndexError):
        raise ValueError(
            f"the test {line.strip()[:80]!r} cannot be judged outside of the sandbox; expected `assert CALL == LITERAL`"
        ) from None
    request = {"function": None, "arguments": None, "expression": ast.unparse(comparison.left)}
    return CodeTest(json.dumps(request), expected, True)


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(value, float) and isinstance(expected, int | float) and not isinstance(expected, bool):
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(value, tuple | list) and isinstance(expected, tuple | list):
        return len(value) == len(expected) and all(map(_equal, value, expected))
    return bool(value == expected)
