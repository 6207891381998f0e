"""Tasks of reasoning_gym in parquet rows, scored by the dataset's own verifier."""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from agentverl.errors import PluginError
from agentverl.rewards.final_answer import Extraction, extract

if importlib.util.find_spec("reasoning_gym") is None:
    raise PluginError("tasks of reasoning_gym need `pip install 'agentverl[reasoning-gym]'`")

PREFIX = "reasoning_gym/"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    extraction: Extraction = "auto",
    **_: Any,
) -> dict[str, Any]:
    """The verifier's score, in [0, 1], of the answer found in the final message (else in all that the policy wrote).

    `data_source` is `reasoning_gym/<dataset>`; `extra_info["entry"]` holds the task as reasoning_gym made it, as a
    mapping or in JSON. Without it the answer alone is compared, which some datasets do not support.
    """
    entry = (extra_info or {}).get("entry", {"answer": ground_truth, "metadata": {}})
    entry = json.loads(entry) if isinstance(entry, str) else entry
    dataset = data_source.removeprefix(PREFIX) or entry["metadata"]["source_dataset"]
    return score_entry(dataset, entry, solution_str if final_message is None else final_message, extraction)


def score_entry(dataset: str, entry: dict[str, Any], text: str, extraction: Extraction = "auto") -> dict[str, Any]:
    """The score of a text as the answer to one task of a dataset, with `acc` and the answer found (`pred`)."""
    truth = entry.get("answer")
    answer = extract(text, extraction, None if truth is None else str(truth))
    score = 0.0 if answer is None else float(verifier(dataset)(answer, entry))
    return {"score": score, "acc": float(score >= 1.0), "pred": answer or ""}


@cache
def verifier(dataset: str) -> Callable[[str, dict[str, Any]], float]:
    """The `score_answer` of a dataset.

    Raises:
        PluginError: reasoning_gym has no such dataset.
    """
    import reasoning_gym  # seconds of imports: only where it is used

    try:
        found: Callable[[str, dict[str, Any]], float] = reasoning_gym.get_score_answer_fn(dataset)
    except ValueError as error:
        raise PluginError(f"reasoning_gym: {error}") from None
    return found
