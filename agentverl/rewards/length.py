"""Scores of how long an answer is: a range it should keep to, and DAPO's penalty near the limit."""

from typing import Any

from agentverl.rewards.settings_check import settings_checked_by
from agentverl.trajectory import AgentLoopOutput


def _check_range(minimum: int, maximum: int, falloff: int) -> None:
    if not 0 <= minimum <= maximum or falloff < 1:
        raise ValueError(
            f"minimum={minimum}, maximum={maximum}, falloff={falloff}: expected 0 <= minimum <= maximum, falloff >= 1"
        )


def _check_buffer(limit: int, buffer: int) -> None:
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer={buffer}: expected 1 to limit={limit}")


@settings_checked_by(_check_range)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    minimum: int = 0,
    maximum: int = 1000,
    falloff: int = 1000,
    **_: Any,
) -> float:
    """1 where the final message has `minimum` to `maximum` characters; outside it falls to 0 over `falloff` more.

    Raises:
        ValueError: the bounds do not fit together.
    """
    _check_range(minimum, maximum, falloff)
    length = len(solution_str if final_message is None else final_message)
    outside = max(minimum - length, length - maximum, 0)
    return max(0.0, 1.0 - outside / falloff)


def overlong_penalty(length: int, limit: int, buffer: int, factor: float) -> float:
    """DAPO's soft penalty: 0 up to `limit - buffer` tokens, then linearly down to `-factor` at the limit, and on.

    min(-(length - (limit - buffer)) / buffer * factor, 0), as verl has it: 22 tokens at a limit of 20 and a buffer of 4
    give -1.5.
    """
    return min(-(length - (limit - buffer)) / buffer * factor, 0.0)


@settings_checked_by(_check_buffer)
def overlong(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    trajectory: list[AgentLoopOutput],
    limit: int,
    buffer: int,
    penalty_factor: float = 1.0,
    **_: Any,
) -> float:
    """`overlong_penalty` of the trajectory's longest sequence, in tokens, for use as a component.

    Raises:
        ValueError: the buffer is not within the limit.
    """
    _check_buffer(limit, buffer)
    length = max((len(output.response_ids) for output in trajectory), default=0)
    return overlong_penalty(length, limit, buffer, penalty_factor)
