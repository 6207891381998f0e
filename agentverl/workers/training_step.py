"""How the ranks of one model share a training step."""

from typing import Any

from agentverl.single_controller import splitting
from agentverl.single_controller.dispatch import DispatchMode


def _first(results: list[Any]) -> Any:
    return results[0]


TRAINING_STEP = DispatchMode(splitting.chunk_batches, _first)
"""Each rank gets a share of the rows, which may be empty; the engine sums gradients and metrics over the ranks, so that
all of them return the same."""
