"""Which rows stand in which mini-batch."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from agentverl.protocol.batch_errors import BatchError


def mini_batch_rows(
    count: int, size: int, epochs: int, seed: int | None, options: Mapping[str, Any]
) -> Iterator[np.ndarray]:
    """Row numbers of each mini-batch of `size` rows, `epochs` times over `count` rows.

    Args:
        options: `shuffle` (with `seed`, the same seed giving the same order) and `drop_last`.

    Raises:
        BatchError: rows that do not divide by `size` without `drop_last`, or another option.
    """
    unknown = options.keys() - {"shuffle", "drop_last"}
    if unknown:
        raise BatchError(f"mini-batches know the options shuffle and drop_last, got {', '.join(sorted(unknown))}")
    if size < 1:
        raise BatchError(f"a mini-batch needs at least one row, got {size}")
    if count % size and not options.get("drop_last", False):
        raise BatchError(f"{count} % {size} != 0: give drop_last or a size that divides the rows")
    random = np.random.default_rng(seed)
    orders = (random.permutation(count) if options.get("shuffle", False) else np.arange(count) for _ in range(epochs))
    return (order[start : start + size] for order in orders for start in range(0, count - size + 1, size))
