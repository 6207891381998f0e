"""The order of prompts, their uids, and going on where a run stopped."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.data.dataloader import PromptLoader
from agentverl.errors import DatasetError


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"index": i} for i in range(count)]


def uids(loader: PromptLoader, batches: int) -> list[list[str]]:
    return [[row["uid"] for row in next(loader)] for _ in range(batches)]


@given(
    count=st.integers(1, 9),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
    stop=st.integers(0, 20),
)
def test_a_resumed_loader_goes_on_as_the_first_would_have(
    count: int, batch_size: int, shuffle: bool, seed: int, stop: int
) -> None:
    batch_size = min(batch_size, count)
    first = PromptLoader(rows_of(count), batch_size=batch_size, shuffle=shuffle, seed=seed)
    uids(first, stop)
    state = json.loads(json.dumps(first.state_dict()))
    resumed = PromptLoader(rows_of(count), batch_size=batch_size, shuffle=shuffle, seed=seed)
    resumed.load_state_dict(state)
    assert resumed.epoch == first.epoch == stop // first.steps_per_epoch
    assert uids(resumed, 12) == uids(first, 12)


@given(count=st.integers(1, 9), batch_size=st.integers(1, 9), taken=st.lists(st.integers(1, 9), max_size=12))
def test_parts_of_batches_neither_repeat_nor_lose_a_place(count: int, batch_size: int, taken: list[int]) -> None:
    batch_size = min(batch_size, count)
    first = PromptLoader(rows_of(count), batch_size=batch_size)
    seen = [row["uid"] for wanted in taken for row in first.take(wanted)]
    assert len(seen) == sum(min(wanted, batch_size) for wanted in taken)
    assert len(set(seen)) == len(seen)
    resumed = PromptLoader(rows_of(count), batch_size=batch_size)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [resumed.take(wanted) for wanted in taken] == [first.take(wanted) for wanted in taken]


def test_every_row_once_an_epoch_with_its_own_uid() -> None:
    loader = PromptLoader(rows_of(6), batch_size=2, seed=5)
    assert loader.steps_per_epoch == 3
    for epoch in range(3):
        assert loader.epoch == epoch
        batches = [next(loader) for _ in range(3)]
        rows = [row for batch in batches for row in batch]
        assert sorted(row["index"] for row in rows) == list(range(6))
        assert all(row["uid"] == f"{epoch}-{row['index']}" for row in rows)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    loader = PromptLoader(rows_of(50), batch_size=50)
    orders = [[row["index"] for row in next(loader)] for _ in range(2)]
    orders.append([row["index"] for row in next(PromptLoader(rows_of(50), batch_size=50, seed=1))])
    assert orders[0] != orders[1] != orders[2] != orders[0]
    plain = PromptLoader(rows_of(3), batch_size=1, shuffle=False)
    assert [next(plain)[0]["index"] for _ in range(4)] == [0, 1, 2, 0]


def test_rows_are_not_changed() -> None:
    rows = rows_of(2)
    next(PromptLoader(rows, batch_size=2))
    assert rows == rows_of(2)


def test_too_few_rows_and_another_dataset_are_errors() -> None:
    with pytest.raises(DatasetError, match=r"3 rows do not make a batch of data\.train_batch_size=4"):
        PromptLoader(rows_of(3), batch_size=4)
    state = PromptLoader(rows_of(8), batch_size=4).state_dict()
    with pytest.raises(DatasetError, match=r"rows was 8 and is 9, seed was 0 and is 2"):
        PromptLoader(rows_of(9), batch_size=4, seed=2).load_state_dict(state)
