"""Columns come out of their packed form bit for bit, in fewer bytes where there is something to save."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.encoding import pack, to_numpy, unpack
from agentverl.protocol.ragged import Ragged

DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64, torch.bfloat16)
VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 255.0, 65536.0, -(2.0**40), float("nan"), float("inf")])


@given(st.lists(st.tuples(VALUES, st.integers(1, 12)), max_size=12), st.sampled_from(DTYPES))
def test_whatever_stands_in_a_column_comes_back_bit_for_bit(runs: list[tuple[float, int]], dtype: torch.dtype) -> None:
    values = torch.tensor([value for value, times in runs for _ in range(times)], dtype=torch.float64)
    if not dtype.is_floating_point:
        values = values.nan_to_num(posinf=7.0).clamp(0 if dtype == torch.uint8 else -(2.0**31), 2.0**31 - 129)
    column = values.to(dtype)
    back = unpack(pack(column))
    assert back.dtype == dtype
    assert to_numpy(back)[0].tobytes() == to_numpy(column)[0].tobytes()
    back.zero_()  # in memory of its own


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=6), max_size=6))
def test_rows_keep_their_lengths(rows: list[list[int]]) -> None:
    column = Ragged.from_list(rows, torch.int64)
    assert pickle.loads(pickle.dumps(column)) == column


@pytest.mark.parametrize(
    ("values", "most"),
    [
        (np.ones(8000, np.int64), 1),
        (np.tile(np.repeat([1, 0], 500), 8), 16 * 4),
        (np.random.default_rng(0).integers(0, 32000, 8000), 2 * 8000),
        (np.random.default_rng(0).random(8000).astype(np.float32), 4 * 8000),
    ],
)
def test_masks_take_next_to_nothing_and_ids_two_bytes(values: np.ndarray, most: int) -> None:
    entries, _, times = pack(torch.from_numpy(values))
    assert entries.nbytes + (0 if times is None else times.nbytes) <= most + 2 * len(entries) * (times is not None)
