"""Columns that travel together come back as they were, each in its place."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.bundle import Bundle
from agentverl.protocol.columns import equal_values, object_array
from agentverl.protocol.ragged import Ragged

LENGTHS = st.lists(st.integers(0, 4), max_size=4)


def column(kind: str, lengths: list[int], first: int) -> Any:
    if kind == "objects":
        return object_array({"number": first + number, "parts": [length]} for number, length in enumerate(lengths))
    if kind == "tensor":
        return torch.tensor(lengths, dtype=torch.float32) + first
    rows = [torch.arange(length) + first for length in lengths]
    if kind == "vectors":
        return Ragged.from_list([torch.stack([row, row], dim=1) for row in rows], torch.int64)
    return Ragged.from_list(rows, torch.int64 if kind == "ids" else torch.float32)


@given(st.lists(st.tuples(st.sampled_from(["ids", "floats", "vectors", "objects", "tensor"]), LENGTHS), max_size=9))
def test_columns_come_back_in_order(drawn: list[tuple[str, list[int]]]) -> None:
    columns = [column(kind, lengths, 10 * number) for number, (kind, lengths) in enumerate(drawn)]
    found = pickle.loads(pickle.dumps(Bundle.of(columns))).columns()
    assert equal_values(found, columns)


def test_alike_columns_travel_as_one() -> None:
    columns = [column(kind, [2, 1], number) for number in range(8) for kind in ("ids", "objects")]
    assert len(Bundle.of(columns).joined) == 2


def test_parts_are_of_all_rows() -> None:
    with pytest.raises(BatchError, match="parts of \\[1, 1\\] rows, 2 in all, are asked of 3 rows"):
        column("ids", [1, 2, 3], 0).parts([1, 1])
