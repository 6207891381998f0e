"""Reward functions of which every tenth call blocks for 200 ms, in a thread or on an event loop, or none does."""

import itertools
import time
from typing import Any

_calls = itertools.count()


def free(data_source: str, solution_str: str, ground_truth: Any) -> float:
    """Never blocks."""
    return float(len(solution_str) % 2)


def blocks(data_source: str, solution_str: str, ground_truth: Any) -> float:
    """Blocks its thread."""
    _block_sometimes()
    return float(len(solution_str) % 2)


async def blocks_loop(data_source: str, solution_str: str, ground_truth: Any) -> float:
    """Blocks the event loop that it runs on."""
    _block_sometimes()
    return float(len(solution_str) % 2)


def _block_sometimes() -> None:
    if next(_calls) % 10 == 0:
        time.sleep(0.2)
