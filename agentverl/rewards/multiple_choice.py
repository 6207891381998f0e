"""Questions with lettered options: the one letter that the answer settles on."""

import re
from typing import Any

from agentverl.rewards.final_answer import boxed, last_line, tagged

_LETTER = re.compile(r"(?<![A-Za-z0-9'])\(?([A-J])\)?(?![A-Za-z0-9'])")
_STATED = re.compile(r"(?:answer|option|choice)(?:\s+is)?\s*[:=]?\s*(.*)", re.IGNORECASE)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """1 where the chosen letter is the true one; naming several chooses none.

    Looked at, in this order: an `<answer>` tag, a box, what follows `answer:` in the last line that says it, the last
    line. `ground_truth` is a letter, or the number of the option counted from 0.

    Raises:
        ValueError: the ground truth is neither.
    """
    truth = _letter_of(ground_truth)
    chosen = choice(solution_str if final_message is None else final_message)
    return {"score": float(chosen == truth), "acc": float(chosen == truth), "pred": chosen or ""}


def choice(text: str) -> str | None:
    """The letter that a text settles on, None where that is none or several."""
    stated = [match[1] for line in text.splitlines() if (match := _STATED.search(line))]
    place = tagged(text) or boxed(text) or (stated[-1] if stated else None) or last_line(text) or ""
    letters = set(_LETTER.findall(re.sub(r"\\text\w*|[*_`{}$]", " ", place)))
    # "A" may be the article of a sentence: as a choice it stands alone or marked.
    if len(letters) > 1 and "A" in letters and re.search(r"\bA [a-z]", place):
        letters.discard("A")
    return letters.pop() if len(letters) == 1 else None


def _letter_of(truth: Any) -> str:
    if isinstance(truth, int) and not isinstance(truth, bool) and 0 <= truth < 10:
        return chr(ord("A") + truth)
    text = str(truth).strip().strip("().").upper()
    if re.fullmatch("[A-J]", text):
        return text
    raise ValueError(f"the ground truth {truth!r} is no letter from A to J and no number of an option")
