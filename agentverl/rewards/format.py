"""Whether an answer keeps a form: tags, each once and in order, or a pattern."""

from collections.abc import Sequence
from typing import Annotated, Any

import regex
from pydantic import AfterValidator

from agentverl.rewards.settings_check import settings_checked_by

PATTERN_SECONDS = 1.0


def _checked(pattern: str | None) -> str | None:
    try:
        regex.compile(pattern or "")
    except regex.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


def _check(tags: Sequence[str], pattern: str | None) -> None:
    if not tags and pattern is None:
        raise ValueError("it needs tags or a pattern")


@settings_checked_by(_check)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    tags: Sequence[str] = (),
    pattern: Annotated[str | None, AfterValidator(_checked)] = None,
    **_: Any,
) -> float:
    """1 where the final message keeps the form, else 0.

    Args:
        tags: such as `[think, answer]`: each opens and closes once, in this order, and nothing but spaces stands
            outside of them.
        pattern: a regular expression for the whole message; one that takes longer than a second does not match.

    Raises:
        ValueError: neither is given, or the pattern is none.
    """
    _check(tags, pattern)
    text = solution_str if final_message is None else final_message
    return float(_has_tags(text, tags) and (pattern is None or _matches(text, pattern)))


def _has_tags(text: str, tags: Sequence[str]) -> bool:
    if not tags:
        return True
    rest = text.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1 or not rest.startswith(opening):
            return False
        rest = rest.partition(closing)[2].strip()
    return not rest


def _matches(text: str, pattern: str) -> bool:
    try:
        return regex.fullmatch(_checked(pattern), text.strip(), flags=regex.DOTALL, timeout=PATTERN_SECONDS) is not None
    except TimeoutError:  # the policy's text made it backtrack without end
        return False
