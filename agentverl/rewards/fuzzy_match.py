"""Answers compared with the truth by how alike they are."""

from typing import Any

from rapidfuzz import fuzz

from agentverl.rewards.exact_match import normalised, true_answers
from agentverl.rewards.final_answer import Extraction, extract


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    extraction: Extraction = "auto",
    threshold: float = 0.0,
    **_: Any,
) -> dict[str, Any]:
    """The likeness of the answer to the nearest true one, in [0, 1] (rapidfuzz's ratio); below `threshold` it is 0.

    The whole answer counts, so that a text which holds the truth among much else is not like it.

    Raises:
        ValueError: there is no truth to compare with.
    """
    truths = true_answers(ground_truth, data_source)
    answer = extract(solution_str if final_message is None else final_message, extraction, truths[0]) or ""
    likeness = max(fuzz.ratio(normalised(answer), normalised(truth)) for truth in truths) / 100 if answer else 0.0
    score = likeness if likeness >= threshold else 0.0
    return {"score": score, "acc": float(likeness == 1.0), "pred": answer}
