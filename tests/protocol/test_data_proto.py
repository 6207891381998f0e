"""DataProto behaves as verl's where that is sound, and cuts, joins and copies any batch."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.batch_errors import BatchError, MissingColumnError
from agentverl.protocol.columns import object_array
from agentverl.protocol.data_proto import DataProto, DataProtoItem
from agentverl.protocol.padding import (
    collate_fn,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)
from agentverl.protocol.ragged import Ragged


def made(rows: int, start: int = 0) -> DataProto:
    """Columns a (row numbers), r (row i has i entries), u (names), and a nested meta_info."""
    numbers = range(start, start + rows)
    return DataProto.from_dict(
        tensors={
            "a": torch.tensor(list(numbers), dtype=torch.int64),
            "r": Ragged.from_list([[n] * n for n in numbers], torch.int64),
        },
        non_tensors={"u": [f"u{n}" for n in numbers], "d": [{"n": [n]} for n in numbers]},
        meta_info={"m": {"x": 1}},
    )


def a(data: DataProto) -> list[int]:
    """The row numbers, after a look that every column agrees with them."""
    numbers: list[int] = data.batch.tensor("a").tolist()
    assert [row.tolist() for row in data.batch.ragged("r").unbind()] == [[n] * n for n in numbers]
    assert data.non_tensor_batch["u"].tolist() == [f"u{n}" for n in numbers]
    assert data.non_tensor_batch["d"].tolist() == [{"n": [n]} for n in numbers]
    assert data.meta_info == {"m": {"x": 1}}
    return numbers


@given(st.integers(0, 7), st.integers(1, 9))
def test_chunks_are_as_even_as_can_be_and_concat_undoes_them(rows: int, chunks: int) -> None:
    parts = made(rows).chunk(chunks)
    sizes = [len(part) for part in parts]
    assert len(sizes) == chunks
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert a(DataProto.concat(parts)) == list(range(rows))


@given(st.integers(0, 7), st.integers(1, 9))
def test_split_leaves_the_rest_to_the_last(rows: int, size: int) -> None:
    parts = made(rows).split(size)
    assert all(len(part) == size for part in parts[:-1])
    assert [number for part in parts for number in a(part)] == list(range(rows))


@given(st.integers(1, 7), st.integers(1, 9))
def test_padding_wraps_round_from_the_front_and_is_undone(rows: int, divisor: int) -> None:
    data = made(rows)
    padded, pad_size = pad_dataproto_to_divisor(data, divisor)
    assert len(padded) % divisor == 0
    assert pad_size < divisor
    assert a(padded) == [number % rows for number in range(rows + pad_size)]
    assert a(unpad_dataproto(padded, pad_size)) == a(data)


def test_padding_an_empty_batch_warns() -> None:
    with pytest.warns(UserWarning, match="empty DataProto"):
        padded, pad_size = pad_dataproto_to_divisor(made(0), 4)
    assert (len(padded), pad_size) == (0, 0)


def test_rows_are_chosen_by_every_kind_of_index() -> None:
    data = made(5)
    assert a(data[1:4]) == [1, 2, 3]
    assert a(data[-2:]) == [3, 4]
    assert a(data[[0, 2]]) == [0, 2]
    assert a(data[np.array([True, False, True, False, False])]) == [0, 2]
    assert a(data[torch.tensor([4, 0])]) == [4, 0]
    assert a(data.select_idxs([4, -5])) == [4, 0]
    assert a(data.slice(1, 5, 2)) == [1, 3]
    assert a(data[[]]) == []
    with pytest.raises(TypeError, match="not supported"):
        data["a"]  # type: ignore[index]
    with pytest.raises(IndexError):
        data[5]


def test_a_row_is_an_item_and_items_collate_to_a_batch() -> None:
    data = made(3)
    item = data[-1]
    assert isinstance(item, DataProtoItem)
    assert item.batch["r"].tolist() == [2, 2]
    assert (item.batch["a"].item(), item.non_tensor_batch["u"]) == (2, "u2")
    assert a(collate_fn([data[0], data[1], data[2]])) == [0, 1, 2]
    assert a(collate_fn([data[2]])) == [2]


def test_batches_never_share_what_can_change() -> None:
    data = made(4)
    batches = [*data.chunk(2), *data.split(3), data[:], data.repeat(2), data.select_idxs([0])]
    for batch in batches:
        batch.batch.tensor("a")[:] = 99
        batch.batch.ragged("r").values[:] = 99
        batch.meta_info["m"]["x"] = 99
        batch.non_tensor_batch["u"][0] = "changed"
        batch.non_tensor_batch["d"][0]["n"].append(99)
    assert a(data) == [0, 1, 2, 3]
    repeated = data.repeat(2).non_tensor_batch["d"]
    assert repeated[0] == repeated[1]
    assert repeated[0] is not repeated[1]


def test_concat_and_union_do_not_share_meta_info() -> None:
    one, other = made(2), made(2, start=2)
    DataProto.concat([one, other]).meta_info["m"]["x"] = 99
    DataProto.from_dict({"z": torch.zeros(2)}).union(one).meta_info["m"]["x"] = 99
    assert (a(one), a(other)) == ([0, 1], [2, 3])


def test_reorder_and_padding_change_the_batch_itself() -> None:
    data = made(4)
    data.reorder(torch.tensor([3, 1, 0, 2]))
    assert a(data) == [3, 1, 0, 2]
    data.padding(2, "first")
    assert a(data) == [3, 1, 0, 2, 3, 3]
    data.padding(1)
    assert a(data)[-1] == 3


def test_repeat_keeps_copies_together_or_apart() -> None:
    data = made(2)
    assert a(data.repeat(2)) == [0, 0, 1, 1]
    assert a(data.repeat(2, interleave=False)) == [0, 1, 0, 1]
    assert a(data.sample_level_repeat([1, 3])) == [0, 1, 1, 1]
    with pytest.raises(BatchError, match="one count for each of 2 rows"):
        data.sample_level_repeat([1])


def test_concat_gathers_metrics_and_refuses_conflicts() -> None:
    def merged(*metas: dict[str, Any]) -> dict[str, Any]:
        return DataProto.concat(
            [DataProto.from_dict({"a": torch.zeros(1)}, meta_info=meta) for meta in metas]
        ).meta_info

    assert merged({"m": 1}, {"k": 2}) == {"m": 1, "k": 2}
    assert merged({"metrics": {"x": 1}}, {"metrics": {"x": 2}}) == {"metrics": {"x": [1, 2]}}
    assert merged({"metrics": [{"x": 1}]}, {}, {"metrics": [{"x": 2}, {"y": 3}]}) == {
        "metrics": {"x": [1, 2], "y": [3]}
    }
    with pytest.raises(BatchError, match="Conflicting values for meta_info key 'm'"):
        merged({"m": 1}, {"m": 2})


def test_concat_refuses_batches_that_do_not_fit() -> None:
    one = DataProto.from_dict({"a": torch.zeros(1), "b": torch.zeros(1, 2)})
    with pytest.raises(MissingColumnError, match=r"batch 1 has keys \['a'\], batch 0 has \['a', 'b'\]"):
        DataProto.concat([one, DataProto.from_dict({"a": torch.zeros(1)})])
    with pytest.raises(BatchError, match="empty list"):
        DataProto.concat([])
    with pytest.raises(BatchError, match="'b' has rows of different shapes"):
        DataProto.concat([one, DataProto.from_dict({"a": torch.zeros(1), "b": torch.zeros(1, 3)})])
    with pytest.raises(BatchError, match="ragged in one batch"):
        DataProto.concat([one, DataProto.from_dict({"a": torch.zeros(1), "b": Ragged.from_list([[1.0]])})])


def test_concat_passes_over_batches_without_columns() -> None:
    assert a(DataProto.concat([DataProto(), made(2)])) == [0, 1]


def test_union_adds_in_place_and_refuses_conflicts() -> None:
    data = DataProto.from_dict({"a": torch.zeros(2)}, {"u": ["x", float("nan")]}, {"m": 1})
    other = DataProto.from_dict({"a": torch.zeros(2), "c": torch.ones(2)}, {"u": ["x", float("nan")]}, {"m": 1, "k": 2})
    assert data.union(other) is data
    assert (list(data.batch.keys()), data.meta_info) == (["a", "c"], {"m": 1, "k": 2})
    with pytest.raises(BatchError, match="column 'a' is in both batches"):
        data.union(DataProto.from_dict({"a": torch.ones(2)}))
    with pytest.raises(BatchError, match="column 'u' is in both batches"):
        data.union(DataProto.from_dict(non_tensors={"u": ["x", "y"]}))
    with pytest.raises(BatchError, match="meta_info 'm'"):
        data.union(DataProto.from_dict({"z": torch.ones(2)}, meta_info={"m": 2}))
    with pytest.raises(BatchError, match="identical batch size, got 2 and 3"):
        data.union(DataProto.from_dict({"z": torch.ones(3)}))


def test_select_pop_and_rename() -> None:
    data = made(2)
    assert a(data.select()) == [0, 1]
    selected = data.select(batch_keys=["a"], non_tensor_batch_keys=[], meta_info_keys=[])
    assert (list(selected.batch), selected.non_tensor_batch, selected.meta_info) == (["a"], {}, {})
    copied = data.select(deepcopy=True)
    copied.batch.tensor("a")[:] = 9
    with pytest.raises(KeyError, match="no column 'zz'; the batch has a, r"):
        data.select(batch_keys=["zz"])
    with pytest.raises(AssertionError):
        data.pop(batch_keys=["a", "zz"])
    assert a(data) == [0, 1]
    popped = data.pop(batch_keys=["r"], non_tensor_batch_keys=["u"])
    assert (list(popped.batch), list(popped.non_tensor_batch), popped.meta_info) == (["r"], ["u"], {})
    assert (list(data.batch), list(data.non_tensor_batch)) == (["a"], ["d"])
    data.rename("a", "z").rename(["z"], ["y"])
    assert list(data.batch) == ["y"]
    with pytest.raises(ValueError, match="as many new keys"):
        data.rename(["y"], [])


def test_mini_batches_come_in_order_or_shuffled_by_seed() -> None:
    data = made(4)
    assert [a(batch) for batch in data.make_iterator(2, epochs=2, seed=1)] == [[0, 1], [2, 3]] * 2

    def shuffled(seed: int) -> list[int]:
        batches = made(20).make_iterator(5, 1, seed, {"shuffle": True})
        return [number for batch in batches for number in a(batch)]

    assert shuffled(1) == shuffled(1) != shuffled(2)
    assert sorted(shuffled(1)) == list(range(20))
    assert [len(batch) for batch in made(5).make_iterator(2, 1, dataloader_kwargs={"drop_last": True})] == [2, 2]
    with pytest.raises(AssertionError, match="5 % 2 != 0"):
        made(5).make_iterator(2, 1)
    with pytest.raises(BatchError, match="got num_workers"):
        data.make_iterator(2, 1, dataloader_kwargs={"num_workers": 2})


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(AssertionError, match="key u length"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"u": ["x"]})
    with pytest.raises(BatchError, match=r"column 'b' has batch size \[3\]"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(ValueError, match="Unsupported type in data"):
        DataProto.from_single_dict({"a": [1, 2]})  # type: ignore[dict-item]
    with pytest.raises(BatchError, match="must be a numpy array"):
        DataProto({"a": torch.zeros(1)}, {"u": ["x"]})  # type: ignore[dict-item]


def test_lists_of_equal_length_stay_objects_and_arrays_keep_their_type() -> None:
    data = DataProto.from_dict(non_tensors={"u": [[1, 2], [3, 4]], "i": np.arange(2)})
    assert data.non_tensor_batch["u"].tolist() == [[1, 2], [3, 4]]
    assert data.non_tensor_batch["u"].shape == (2,)
    assert data.non_tensor_batch["i"].dtype == np.int64
    assert len(data) == 2
    assert len(DataProto()) == 0
    assert object_array([]).shape == (0,)


def test_from_single_dict_sorts_by_kind() -> None:
    data = DataProto.from_single_dict({"a": torch.zeros(1), "r": Ragged.from_list([[1]]), "u": np.array(["x"])})
    assert (list(data.batch), list(data.non_tensor_batch)) == (["a", "r"], ["u"])


def test_columns_are_cut_along_their_second_dimension() -> None:
    data = DataProto.from_dict(
        {"a": torch.arange(2), "b": torch.arange(4).reshape(2, 2), "r": Ragged.from_list([[1, 2], []], torch.int64)}
    )
    unfolded = data.unfold_column_chunks(2, ["b", "r"])
    assert unfolded.batch.tensor("a").tolist() == [0, 0, 1, 1]
    assert unfolded.batch.tensor("b").tolist() == [[0], [1], [2], [3]]
    assert [row.tolist() for row in unfolded.batch.ragged("r")] == [[1], [2], [], []]
    with pytest.raises(BatchError, match="cannot be cut into 3"):
        data.unfold_column_chunks(3, ["b"])
    with pytest.raises(MissingColumnError, match="'zz'"):
        data.unfold_column_chunks(2, ["zz"])


def test_batch_dimensions_fold_and_unfold() -> None:
    data = DataProto.from_dict({"a": torch.arange(6)}, {"u": list("abcdef")})
    folded = fold_batch_dim(data, 3)
    assert folded.batch.tensor("a").shape == (3, 2)
    assert folded.non_tensor_batch["u"].tolist() == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert unfold_batch_dim(folded).batch.tensor("a").tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(BatchError, match="6 rows cannot be folded into 4"):
        fold_batch_dim(data, 4)


def test_a_batch_survives_pickling_and_the_disk(tmp_path: Path) -> None:
    data = made(3)
    data.batch["bf16"] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    data.batch["grad"] = torch.zeros(3, requires_grad=True)
    data.save_to_disk(tmp_path / "batch.pkl")
    for restored in (pickle.loads(pickle.dumps(data)), DataProto.load_from_disk(tmp_path / "batch.pkl")):
        assert a(restored) == [0, 1, 2]
        assert restored.batch["bf16"].dtype == torch.bfloat16
        assert restored.batch == DataProto(restored.batch).batch
        restored.batch.tensor("a").add_(1)
    (tmp_path / "other.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(BatchError, match="holds a list"):
        DataProto.load_from_disk(tmp_path / "other.pkl")


def test_tensordict_round_trip() -> None:
    pytest.importorskip("tensordict")
    data = made(3)
    tensor_dict = data.to_tensordict()
    assert sorted(tensor_dict.keys()) == ["a", "d", "m", "r", "u"]
    restored = DataProto.from_tensordict(tensor_dict)
    assert a(restored) == [0, 1, 2]


def test_columns_are_moved_and_described() -> None:
    data = made(2)
    assert data.to("cpu") is data
    assert data.batch.device == torch.device("cpu")
    assert "r: ragged (1,) torch.int64" in data.get_data_info()
    assert data.size_bytes == 2 * 8 + 1 * 8 + 2 * 2 * 8
    assert DataProto.from_dict({"a": torch.zeros(1)}, auto_padding=True).is_padding_enabled()
    assert not data.is_padding_enabled()
