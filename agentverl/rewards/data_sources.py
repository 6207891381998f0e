"""Which scorer judges a data source, when no reward function is configured."""

import asyncio
import inspect
from fnmatch import fnmatchcase
from typing import Any

from agentverl import plugins
from agentverl.errors import PluginError

SCORERS = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math_verify",
    "DigitalLearningGmbH/MATH-lighteval": "math_verify",
    "HuggingFaceH4/MATH-500": "math_verify",
    "math_dapo": "math_verify",
    "math": "math_verify",
    "aime*": "math_verify",
    "numina_*": "math_verify",
    "codecontests": "code",
    "apps": "code",
    "codeforces": "code",
    "taco": "code",
    "hiyouga/geometry3k": "geometry3k",
    "searchR1_*": "search_r1",
    "reasoning_gym/*": "reasoning_gym",
}
"""verl's data sources (patterns allowed) and the plugin of kind `rewards` that scores each."""

_COMPARING = frozenset(
    {"gsm8k", "math_verify", "exact_match", "fuzzy_match", "multiple_choice", "code", "geometry3k", "search_r1"}
)


def scorer_name(data_source: str) -> str:
    """The plugin that scores a data source: by the table, else an installed scorer of the data source's own name.

    Raises:
        PluginError: nothing scores it; says what would.
    """
    for pattern, name in SCORERS.items():
        if fnmatchcase(data_source, pattern):
            return name
    if data_source in dict(plugins.installed("rewards")):
        return data_source
    raise PluginError(
        f"no reward function for data_source {data_source!r}; name one with reward.custom_reward_function.path (in a "
        f"component: `function` in its settings), give the environment a `score`, or use one of: {', '.join(SCORERS)}"
    )


def compares_with_truth(data_source: str) -> bool:
    """Whether the scorer of a data source is one of the shipped ones that need a ground truth."""
    return scorer_name(data_source) in _COMPARING


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> float | dict[str, Any]:
    """Score with the scorer of the data source, in this thread and without a deadline: for scripts and notebooks."""
    scorer = plugins.find("rewards", scorer_name(data_source))
    value = scorer(data_source, solution_str, ground_truth, extra_info, **kwargs)
    score: float | dict[str, Any] = asyncio.run(value) if inspect.iscoroutine(value) else value
    return score
