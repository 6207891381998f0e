r"""Geometry3k: nine tenths for the boxed answer, one tenth for the form `<think>...</think> ... \boxed{...}`."""

import re
from typing import Any

from agentverl.rewards import math_verify
from agentverl.rewards.process_pool import killable

_FORM = re.compile(r"\s*<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


@killable(minimum_score=0.0)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    format_score: float = 0.1,
    **_: Any,
) -> dict[str, Any]:
    """The two parts added up, `format_score` being the share of the form.

    Raises:
        ValueError: the ground truth is no mathematical expression.
    """
    judged = math_verify.compute_score(data_source, solution_str, ground_truth)
    form = float(_FORM.fullmatch(solution_str) is not None)
    score = (1 - format_score) * judged["score"] + format_score * form
    return {"score": score, "acc": judged["acc"], "pred": judged["pred"], "format": form}
