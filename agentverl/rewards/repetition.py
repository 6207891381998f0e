"""A penalty for saying the same again: the share of n-grams that came before."""

from typing import Any

from agentverl.rewards.settings_check import settings_checked_by


def _check(ngram_size: int, max_penalty: float) -> None:
    if ngram_size < 1 or max_penalty < 0:
        raise ValueError(f"ngram_size={ngram_size}, max_penalty={max_penalty}: expected at least 1 and 0")


@settings_checked_by(_check)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    *,
    ngram_size: int = 3,
    max_penalty: float = 1.0,
    **_: Any,
) -> float:
    """`-max_penalty` times the share of word n-grams that are repetitions; 0 for a text of fewer words.

    1 - distinct / all, as in Yeo et al. 2025 (Demystifying long chain-of-thought reasoning). Words are split by spaces.

    Raises:
        ValueError: `ngram_size` is below 1, or `max_penalty` negative.
    """
    _check(ngram_size, max_penalty)
    words = solution_str.lower().split()
    count = len(words) - ngram_size + 1
    if count < 1:
        return 0.0
    distinct = len({tuple(words[start : start + ngram_size]) for start in range(count)})
    return -max_penalty * (1 - distinct / count)
