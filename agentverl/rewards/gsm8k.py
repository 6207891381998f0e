"""GSM8K: the number after `####` (strict) or the last number (flexible)."""

import re
from decimal import Decimal
from typing import Any, Literal

from agentverl.rewards.final_answer import as_number, last_number

_MARKED = re.compile(r"####\s*\$?\s*([-\N{MINUS SIGN}]?[\d.,]+)")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
    **_: Any,
) -> float:
    """`score` for the right number, `format_score` for a wrong one, 0 without a number in the expected form.

    `ground_truth` is the number or a whole solution that ends in `#### number`. Numbers are compared by value, so
    `1,000`, `1000` and `1000.00` are the same.

    Raises:
        ValueError: the ground truth holds no number.
    """
    truth = _after_mark(str(ground_truth)) or last_number(str(ground_truth))
    if truth is None:
        raise ValueError(f"the ground truth {ground_truth!r} of {data_source} holds no number")
    answer = _after_mark(solution_str) if method == "strict" else last_number(solution_str)
    if answer is None:
        return 0.0
    return score if answer == truth else format_score


def _after_mark(text: str) -> Decimal | None:
    found = _MARKED.findall(text)
    return as_number(found[-1].rstrip(".,")) if found else None
