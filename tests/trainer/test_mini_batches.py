"""Optimiser steps are counted in prompts."""

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.trainer.mini_batches import mini_batches


def batch_with(uids: list[str]) -> DataProto:
    return DataProto.from_dict(
        tensors={"row": torch.arange(len(uids))}, non_tensors={"uid": np.array(uids, dtype=object)}
    )


def test_every_sequence_is_in_one_mini_batch_with_its_prompt() -> None:
    batch = batch_with(["a", "b", "a", "c", "b", "a", "d", "e"])
    parts = list(mini_batches(batch, prompts=2, epochs=1, seed=None))
    assert [sorted(set(part.non_tensor_batch["uid"])) for part in parts] == [["a", "b"], ["c", "d"], ["e"]]
    assert sorted(row for part in parts for row in part.batch.tensor("row").tolist()) == list(range(8))


def test_more_sequences_of_an_episode_do_not_make_more_optimiser_steps() -> None:
    few = list(mini_batches(batch_with(["a", "b", "c", "d"]), prompts=2, epochs=3, seed=1))
    many = list(mini_batches(batch_with(["a"] * 9 + ["b", "c", "d"]), prompts=2, epochs=3, seed=1))
    assert len(few) == len(many) == 6


def test_epochs_are_shuffled_differently_and_the_same_with_the_same_seed() -> None:
    batch = batch_with([str(number) for number in range(20)])
    orders = [
        [part.batch.tensor("row").tolist() for part in mini_batches(batch, prompts=5, epochs=2, seed=7)]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]
    assert orders[0][:4] != orders[0][4:]
