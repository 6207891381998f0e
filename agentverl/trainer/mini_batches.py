"""Optimiser steps counted in prompts, so that several sequences from one episode never change their number."""

from collections.abc import Iterator

import numpy as np

from agentverl.protocol.chosen_rows import chosen_rows
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.grouping import rows_by
from agentverl.settings.seeds import derive_seed


def mini_batches(batch: DataProto, *, prompts: int, epochs: int, seed: int | None) -> Iterator[DataProto]:
    """Slices of the batch with the sequences of at most `prompts` prompts each, `epochs` times over.

    With a seed the prompts of each epoch are shuffled by it; without, their order is kept.
    """
    rows_of = rows_by(batch.non_tensor_batch["uid"])
    order = list(rows_of)
    for epoch in range(epochs):
        shuffled = order
        if seed is not None:
            shuffled = [
                order[index] for index in np.random.default_rng(derive_seed(seed, epoch)).permutation(len(order))
            ]
        for start in range(0, len(shuffled), prompts):
            rows = [row for uid in shuffled[start : start + prompts] for row in rows_of[uid]]
            yield chosen_rows(batch, rows)
