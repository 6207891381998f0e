"""Programs judged by tests that run them in a sandbox; what a test expects never enters it."""

import json
import os
from collections.abc import Sequence
from typing import Any

from agentverl import plugins
from agentverl.deadlines import Deadline
from agentverl.rewards.at_once import at_once
from agentverl.rewards.code_blocks import last_block
from agentverl.rewards.code_tests import CodeTest, read_tests
from agentverl.sandboxes.base import ExecResult, Sandbox


# As many sandboxes at a time as there are processors, so that time limits mean what they say.
@at_once(os.cpu_count() or 1)
async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    partial: bool = False,
    max_tests: int = 20,
    seconds_a_test: float = 10.0,
    seconds_in_all: float = 45.0,
    memory_bytes: int = 512 << 20,
    sandbox: str = "bubblewrap",
    **_: Any,
) -> dict[str, Any]:
    """1 where the last Python block of the answer passes all tests, else 0; with `partial` the share of tests passed.

    `ground_truth` holds the tests, as `read_tests` takes them. A test that ends in an error, or runs out of time or
    memory, is failed, as are those for which nothing of `seconds_in_all` is left: a slow program must not get past
    `reward.timeout_seconds`, which excludes instead of scoring. Ending well is not enough: the output is compared here.

    Raises:
        ValueError: there are no tests, or in a form that cannot be run so.
        InfrastructureError: there is no sandbox.
    """
    tests = read_tests(ground_truth)[:max_tests]
    text = solution_str if final_message is None else final_message
    program = last_block(text, ("python", "py", "python3", ""))
    if program is None:
        return {"score": 0.0, "acc": 0.0, "passed": 0, "tests": len(tests), "problem": "no code block"}
    box: Sandbox = plugins.find("sandboxes", sandbox)(memory_bytes=memory_bytes)
    try:
        passed, problem = await _run(box, program, tests, seconds_a_test, Deadline.after(seconds_in_all), partial)
    finally:
        await box.close()
    share = passed / len(tests)
    right = float(passed == len(tests))
    score = share if partial else right
    return {"score": score, "acc": right, "passed": passed, "tests": len(tests), "problem": problem}


async def _run(
    box: Sandbox, program: str, tests: Sequence[CodeTest], seconds_a_test: float, deadline: Deadline, goes_on: bool
) -> tuple[int, str]:
    """How many tests pass, and what was wrong with the first that does not."""
    passed, problem = 0, ""
    for test in tests:
        left = deadline.left_of(seconds_a_test)
        if not left:
            return passed, problem or "out of time"
        # Written anew for each test: a program may have changed its files.
        await box.write_file("solution.py", program.encode())
        await box.write_file("driver.py", test.driver.encode())
        result = await box.exec(f"{box.python} -I driver.py", timeout_seconds=left, stdin=test.stdin)
        if result.exit_code == 0 and test.passes(result.stdout):
            passed += 1
            continue
        problem = problem or _problem(result)
        if not goes_on:
            break
    return passed, problem


def _problem(result: ExecResult) -> str:
    if result.timed_out:
        return "out of time"
    if result.killed_by_memory:
        return "out of memory"
    last = result.stderr.strip().rpartition("\n")[2]
    return last[:200] or f"wrong output {json.dumps(result.stdout.strip()[-100:])}"
