"""Questions answered after a search, as in Search-R1 (Jin et al. 2025): the last `<answer>`, compared as SQuAD does."""

from typing import Any

from agentverl.rewards.exact_match import normalised, true_answers
from agentverl.rewards.final_answer import tagged

_MOST_ANSWERS = 10


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    contains: bool = False,
    format_score: float = 0.0,
    score: float = 1.0,
    **_: Any,
) -> dict[str, Any]:
    """`score` for a right answer, `format_score` for a wrong one, 0 without an `<answer>`.

    `ground_truth` is `{"target": [...]}`, a text or a list. With `contains` a target within the answer is enough. As in
    verl, more than ten answers quarter the score of a right one.

    Raises:
        ValueError: there is no truth to compare with.
    """
    targets = [normalised(truth) for truth in true_answers(ground_truth, data_source)]
    answer = tagged(solution_str)
    if answer is None:
        return {"score": 0.0, "acc": 0.0, "pred": ""}
    given = normalised(answer)
    right = given in targets or (contains and any(f" {target} " in f" {given} " for target in targets))
    value = score if right else format_score
    tags = max(solution_str.count("<answer>"), solution_str.count("</answer>"))
    if right and tags > _MOST_ANSWERS:
        value /= 4
    return {"score": value, "acc": float(right), "pred": answer}
