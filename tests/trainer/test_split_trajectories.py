"""Splitting trajectories into sequences changes no advantage and no return, whatever the estimator."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentverl.algorithms.registry import advantage_estimators
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.trainer.advantages import assign_advantages
from tests.algorithms.estimator_batches import COLUMNS, CONFIG, EstimatorBatch


def in_sequences(batch: EstimatorBatch, pieces: list[tuple[int, int, int]]) -> DataProto:
    """A row for each (trajectory, from, to); turns are counted from 0 in each."""
    fields: dict[str, list[object]] = {name: [] for name in ("trajectory_id", "sequence_index", "role", "state_keys")}
    fields |= {"score": [], "reward_components": [], "reward_baselines": []}
    turns = []
    for row, start, stop in pieces:
        mask, index = batch.mask[row], batch.columns["turn_index"][row]
        begun = set(index[:start][mask[:start]].tolist())
        own = torch.where(mask, index, -1)[start:stop]
        numbers = torch.tensor(sorted({turn for turn in own.tolist() if turn >= 0}), dtype=torch.int64)
        turns.append(torch.where(own >= 0, torch.searchsorted(numbers, own.clamp(min=0)), -1))
        fields["trajectory_id"].append(f"t{row}")
        fields["sequence_index"].append(start)
        fields["role"].append("main")
        fields["state_keys"].append([f"s{int(number) % 2}" for number in numbers])
        fields["score"].append(0.0)
        fields["reward_components"].append({key: batch.fields[key][row] for key in ("acc", "format")})
        fields["reward_baselines"].append(batch.fields["reward_baselines"][row])
        assert not begun & set(numbers.tolist()), "a turn stands in one sequence"
    arrays = {}
    for name, values in fields.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = values
    columns = {
        name: Ragged.from_list([batch.columns[name][row, start:stop] for row, start, stop in pieces])
        for name in (*COLUMNS, "response_mask")
    }
    return DataProto.from_dict(tensors={**columns, "turn_index": Ragged.from_list(turns)}, non_tensors=arrays)


def cuts(batch: EstimatorBatch, row: int, random: Random) -> list[int]:
    """Where a trajectory may be cut: at its ends, and at some places where no turn is torn."""
    mask, index = batch.mask[row], batch.columns["turn_index"][row]
    width = len(mask)
    free = [
        cut
        for cut in range(1, width)
        if not set(index[:cut][mask[:cut]].tolist()) & set(index[cut:][mask[cut:]].tolist())
    ]
    return [0, *sorted(random.sample(free, min(len(free), random.randint(0, 2)))), width]


@pytest.mark.parametrize("name", advantage_estimators.names())
@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_sequences_of_a_trajectory_get_what_the_whole_gets(name: str, seed: int, random: Random) -> None:
    batch = EstimatorBatch.random(seed)
    algorithm = AlgorithmSettings(adv_estimator=name, **(CONFIG | {"lam": 0.8}))
    width = batch.mask.shape[1]
    whole = in_sequences(batch, [(row, 0, width) for row in range(len(batch))])
    groups = [str(key) for key in batch.fields["index"]]
    assign_advantages(whole, groups, algorithm)
    pieces = []
    for row in range(len(batch)):
        ends = cuts(batch, row, random)
        pieces += [(row, start, stop) for start, stop in pairwise(ends)]
    random.shuffle(pieces)
    split = in_sequences(batch, pieces)
    assign_advantages(split, [groups[row] for row, _, _ in pieces], algorithm)
    for column in ("advantages", "returns"):
        for number, (row, start, stop) in enumerate(pieces):
            expected = whole.batch.ragged(column)[row][start:stop]
            torch.testing.assert_close(split.batch.ragged(column)[number], expected)
