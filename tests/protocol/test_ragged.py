"""Ragged columns hold rows of any length and give them back unchanged."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.ragged import Ragged

rows_of_integers = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=6)


def listed(column: Ragged) -> list[list[int]]:
    return [row.tolist() for row in column.unbind()]


@given(rows_of_integers)
def test_rows_survive_padding_and_pickling(rows: list[list[int]]) -> None:
    column = Ragged.from_list(rows, torch.int64)
    assert listed(column) == rows
    assert [row.tolist() for row in column] == rows
    assert Ragged.from_padded(column.to_padded(7, length=9), column.lengths) == column
    assert column.row_index.tolist() == [number for number, row in enumerate(rows) for _ in row]
    assert pickle.loads(pickle.dumps(column)) == column


@given(rows_of_integers, st.data())
def test_choosing_rows_equals_choosing_from_the_list(rows: list[list[int]], data: st.DataObject) -> None:
    column = Ragged.from_list(rows, torch.int64)
    numbers = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=8))
    start, stop, step = (
        data.draw(st.integers(-3, 7)),
        data.draw(st.integers(-3, 7)),
        data.draw(st.sampled_from([-2, -1, 1, 2])),
    )
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    assert listed(column[numbers]) == [rows[number] for number in numbers]
    assert listed(column[torch.tensor(numbers, dtype=torch.int64)]) == [rows[number] for number in numbers]
    assert listed(column[start:stop:step]) == rows[start:stop:step]
    assert listed(column[np.array(mask)]) == [row for row, kept in zip(rows, mask, strict=True) if kept]


@given(rows_of_integers, rows_of_integers)
def test_concat_appends_rows(one: list[list[int]], other: list[list[int]]) -> None:
    columns = [Ragged.from_list(rows, torch.int64) for rows in (one, other)]
    assert listed(Ragged.concat(columns)) == one + other


def test_chosen_rows_are_a_copy_and_a_single_row_is_a_view() -> None:
    column = Ragged.from_list([[1, 2], [3]])
    column[[0]].values[0] = 9
    column[:].values[0] = 9
    assert listed(column) == [[1, 2], [3]]
    column[0][0] = 9
    assert listed(column) == [[9, 2], [3]]


def test_rows_keep_further_dimensions_and_gradients() -> None:
    values = torch.arange(6.0).reshape(3, 2).requires_grad_()
    padded = Ragged.from_lengths(values, [1, 2]).to_padded(float("nan"))
    assert padded.shape == (2, 2, 2)
    (gradient,) = torch.autograd.grad(padded[1].sum(), values)
    assert gradient.tolist() == [[0, 0], [1, 1], [1, 1]]


def test_empty_rows_do_not_change_the_type() -> None:
    assert Ragged.from_list([[], [1, 2]]).dtype == torch.int64
    assert Ragged.from_list([[], [0.5]]).dtype == torch.float32
    assert Ragged.from_list([[1], [0.5]]).dtype == torch.float32
    assert len(Ragged.from_list([])) == 0


def test_bfloat16_survives_pickling() -> None:
    column = Ragged(torch.tensor([0.5, -2.0], dtype=torch.bfloat16), torch.tensor([0, 1, 2]))
    assert pickle.loads(pickle.dumps(column)) == column
    assert copy.deepcopy(column) == column


def test_equality_looks_at_cuts_types_and_nan() -> None:
    column = Ragged.from_list([[float("nan"), 1.0], [2.0]])
    assert column == Ragged.from_list([[float("nan"), 1.0], [2.0]])
    assert column != Ragged.from_list([[float("nan")], [1.0, 2.0]])
    assert Ragged.from_list([[1]]) != Ragged.from_list([[1.0]])


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 2, 1, 3]])
def test_offsets_that_do_not_cut_the_values_are_refused(offsets: list[int]) -> None:
    with pytest.raises(BatchError, match="offsets must rise from 0 to the number of values 3"):
        Ragged(torch.zeros(3), torch.tensor(offsets))


def test_what_does_not_fit_is_refused() -> None:
    column = Ragged.from_list([[1, 2], [3]])
    with pytest.raises(BatchError, match="2 entries does not fit a padded length of 1"):
        column.to_padded(length=1)
    with pytest.raises(BatchError, match="do not fit a padded column"):
        Ragged.from_padded(torch.zeros(2, 2), [1, 3])
    with pytest.raises(BatchError, match="boolean mask"):
        column[[True]]
    with pytest.raises(BatchError, match="out of range"):
        column[[2]]
    with pytest.raises(IndexError):
        column[2]
    with pytest.raises(TypeError, match="integers or booleans"):
        column[[0.5]]  # type: ignore[list-item]
    with pytest.raises(BatchError, match="single value"):
        Ragged.from_list([3])  # type: ignore[list-item]


def test_empty_arrays_say_nothing_about_the_shape_of_others() -> None:
    column = Ragged.from_list([np.zeros(0, np.int64), np.ones((2, 3), np.int64)])
    assert (column.lengths.tolist(), column.values.shape) == ([0, 2], (2, 3))


def test_arrays_become_rows_of_their_own_memory() -> None:
    rows = [np.arange(3), np.arange(2)]
    column = Ragged.from_list(rows)
    rows[0][:] = 7
    assert column[0].tolist() == [0, 1, 2]
