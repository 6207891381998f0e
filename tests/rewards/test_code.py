"""Programs are judged by what they compute, whatever they say of themselves."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentverl.rewards.code import compute_score
from agentverl.rewards.code_blocks import last_block
from agentverl.rewards.code_tests import read_tests
from agentverl.sandboxes.bubblewrap import reason_unavailable

needs_sandbox = pytest.mark.skipif(bool(reason_unavailable()), reason=reason_unavailable() or "there is one")

SQUARES = ["assert square(2) == 4", "assert square(-3) == 9"]


def answer(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\n"


async def judge(program: str, tests: Any = SQUARES, **settings: Any) -> dict[str, Any]:
    return await compute_score("code", answer(program), tests, **settings)


@needs_sandbox
async def test_functions_programs_and_classes_are_tested() -> None:
    squares = await judge("def square(x): return x * x")
    assert squares["score"] == 1.0, squares
    program = "n = int(input())\nprint(n * 2)\nprint('done ')"
    pairs = {"inputs": ["4\n", "5\n"], "outputs": ["8\ndone\n", "10\ndone"]}
    assert (await judge(program, json.dumps(pairs)))["score"] == 1.0
    calls = {"fn_name": "add", "inputs": [[1, 2], "3\n4"], "outputs": [3, "7"]}
    assert (await judge("class Solution:\n  def add(self, a, b): return a + b", calls))["score"] == 1.0
    assert (await judge("def f(x): return (0.1 + 0.2, [x])", ["assert f('a') == (0.3, ['a'])"]))["score"] == 1.0


@needs_sandbox
async def test_a_wrong_program_says_what_was_wrong() -> None:
    result = await judge("def square(x): return 4", partial=True)
    assert (result["score"], result["acc"], result["passed"], result["tests"]) == (0.5, 0.0, 1, 2)
    assert (await judge("def square(x): return 4"))["score"] == 0.0
    assert (await judge("def square(x) return 4"))["problem"].startswith("SyntaxError")
    assert (await judge("def square(x): return y"))["problem"].startswith("NameError")
    slow = await judge("def square(x):\n  while True: pass", seconds_a_test=0.5)
    assert (slow["score"], slow["problem"]) == (0.0, "out of time")
    hungry = await judge("def square(x): return bytearray(1 << 33)", memory_bytes=256 << 20)
    assert (hungry["score"], hungry["problem"]) == (0.0, "out of memory")


@needs_sandbox
async def test_all_tests_together_end_in_time_whatever_each_takes() -> None:
    started = time.monotonic()
    many = ["assert square(2) == 4"] * 20
    slow = "import time\ndef square(x):\n  time.sleep(0.6)\n  return x * x"
    result = await judge(slow, many, partial=True, seconds_a_test=5.0, seconds_in_all=2.0)
    assert time.monotonic() - started < 10
    assert (result["problem"], result["tests"]) == ("out of time", 20)
    assert 0 <= result["passed"] <= 3
    assert result["score"] == result["passed"] / 20


async def test_an_answer_without_code_scores_nothing() -> None:
    result = await compute_score("code", "I do not know.", SQUARES)
    assert (result["score"], result["problem"]) == (0.0, "no code block")


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("```python\na\n```\ntext\n```py\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("```bash\nls\n```", None),
        ("```python\ncut", None),
        ("no code", None),
    ],
)
def test_the_last_python_block_counts(text: str, block: str | None) -> None:
    assert last_block(text, ("python", "py", "")) == block


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([], "holds no tests"),
        ("", "holds no tests"),
        (None, "holds no tests"),
        ({"inputs": ["1"]}, "two lists of the same length"),
        ({"inputs": ["1"], "outputs": []}, "two lists of the same length"),
        (["assert f(1)"], "cannot be judged outside of the sandbox"),
        (["assert f(1) == g(1)"], "expected `assert CALL == LITERAL`"),
        (["f(1)"], "cannot be judged"),
        ("{", "Expecting property name"),
    ],
)
def test_tests_in_another_form_are_refused(tests: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_tests(tests)


HACKS: dict[str, Callable[[], str]] = {
    "exits early with code 0": lambda: "import sys\nsys.exit(0)",
    "exits at once": lambda: "import os\nos._exit(0)",
    "exits in the call": lambda: "import os\ndef square(x): os._exit(0)",
    "prints what tests print": lambda: "print('4')\nprint('All tests passed')\nimport os\nos._exit(0)",
    "edits the driver": lambda: (
        "open('driver.py', 'w').write('print(4)')\nopen('tests.py', 'w').write('')\ndef square(x): return 4"
    ),
    "speaks as a sandbox that did not start": lambda: "import os, sys\nsys.stderr.write('bwrap: no')\nos._exit(1)",
    "equals everything": lambda: (
        "class Any:\n  def __eq__(self, other): return True\n  def __repr__(self): return '4'\n"
        "def square(x): return Any()"
    ),
    "patches eval": lambda: "import builtins\nbuiltins.eval = lambda *_: 4\ndef square(x): return 4",
    "reads what is expected": lambda: (
        "import glob, os\ntext = ''.join(open(f, errors='ignore').read() for f in glob.glob('/work/*') + "
        "['/proc/self/environ', '/proc/self/cmdline'])\ndef square(x): return 9 if '9' in text else 4"
    ),
}


@needs_sandbox
@pytest.mark.parametrize("hack", HACKS)
async def test_ways_around_the_tests_lead_nowhere(hack: str) -> None:
    result = await judge(HACKS[hack]())
    assert (result["score"], result["acc"]) == (0.0, 0.0)
