"""Mathematical answers compared by value (fractions, sets, LaTeX) with the package math-verify."""

import importlib.util
import logging
from functools import cache
from typing import Any

from agentverl.errors import PluginError
from agentverl.rewards.process_pool import killable

if importlib.util.find_spec("math_verify") is None:
    raise PluginError("scoring with math-verify needs `pip install 'agentverl[math]'`")


@killable(minimum_score=0.0)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **_: Any,
) -> dict[str, Any]:
    r"""1 where the answer equals the ground truth: the last `\boxed{}`, else the last expression of the text.

    Raises:
        ValueError: the ground truth is no mathematical expression.
    """
    parse, verify = _functions()
    truth = str(ground_truth)
    # No timeouts of its own: they need signals, and the process that runs this is killed at the deadline.
    gold = parse(truth if "\\boxed" in truth or "$" in truth else f"\\boxed{{{truth}}}", parsing_timeout=None)
    if not gold:
        raise ValueError(f"the ground truth {truth!r} of {data_source} is no mathematical expression")
    answer = parse(solution_str, parsing_timeout=None)
    right = bool(answer) and bool(verify(gold, answer, timeout_seconds=None))
    return {"score": float(right), "acc": float(right), "pred": str(answer[-1]) if answer else ""}


@cache
def _functions() -> tuple[Any, Any]:
    from math_verify import parse, verify  # loads sympy: only in the process that scores

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns about each timeout that we turn off
    return parse, verify
