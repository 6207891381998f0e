"""Answers compared with the truth as texts, after stripping what writing adds: case, punctuation, articles, spaces."""

import re
import string
from collections.abc import Mapping
from typing import Any

from agentverl.rewards.final_answer import Extraction, as_number, extract

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    extraction: Extraction = "auto",
    strict: bool = False,
    **_: Any,
) -> dict[str, Any]:
    """1 where the answer is one of the true ones, else 0; numbers are compared by value.

    `ground_truth` is a text, a number, a list of either, or verl's `{"target": [...]}`. `strict` compares as written.

    Raises:
        ValueError: there is no truth to compare with.
    """
    truths = true_answers(ground_truth, data_source)
    answer = extract(solution_str if final_message is None else final_message, extraction, truths[0]) or ""
    right = bool(answer) and any(_same(answer, truth, strict) for truth in truths)
    return {"score": float(right), "acc": float(right), "pred": answer}


def true_answers(ground_truth: Any, data_source: str = "") -> list[str]:
    """The answers that count as right.

    Raises:
        ValueError: there is none.
    """
    if isinstance(ground_truth, Mapping):
        ground_truth = ground_truth.get("target")
    if hasattr(ground_truth, "tolist"):  # parquet gives arrays
        ground_truth = ground_truth.tolist()
    listed = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    answers = [str(truth).strip() for truth in listed if truth is not None and str(truth).strip()]
    if not answers:
        raise ValueError(f"the ground truth {ground_truth!r} of {data_source or 'the row'} holds no answer")
    return answers


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces: SQuAD's form (Rajpurkar et al. 2016).

    What holds nothing else stays in lower case, so that it equals itself and not all that is of this kind.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()) or text.strip().lower()


def _same(answer: str, truth: str, strict: bool) -> bool:
    if strict:
        return answer == truth
    number = as_number(truth)
    if number is not None:
        return as_number(answer.rstrip(".")) == number
    return normalised(answer) == normalised(truth)
