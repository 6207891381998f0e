"""Columns that a batch refers to come back unchanged, whatever was done with its rows."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.batch_errors import BatchError, MissingColumnError
from agentverl.protocol.column_store import MemoryColumnStore, drop, refer, referred, resolve
from agentverl.protocol.columns import object_array
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged

MOVED = ["prompts", "score", "image"]


def batch(rows: int, first: int = 0) -> DataProto:
    numbers = range(first, first + rows)
    return DataProto(
        {
            "prompts": Ragged.from_list([torch.arange(number % 4) + number for number in numbers], torch.long),
            "score": torch.tensor([float(number) for number in numbers]),
            "mask": torch.ones(rows),
        },
        {"image": object_array(np.full(3, number, np.uint8) for number in numbers), "uid": object_array(numbers)},
    )


def assert_equal(one: DataProto, other: DataProto) -> None:
    assert one.batch.ragged("prompts") == other.batch.ragged("prompts")
    assert torch.equal(one.batch.tensor("score"), other.batch.tensor("score"))
    assert [image.tolist() for image in one.non_tensor_batch["image"]] == [
        image.tolist() for image in other.non_tensor_batch["image"]
    ]
    assert list(one.non_tensor_batch["uid"]) == list(other.non_tensor_batch["uid"])


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_rows_of_several_blocks_come_back_in_the_order_they_were_put_into(
    one: int, other: int, data: st.DataObject
) -> None:
    store = MemoryColumnStore()
    whole = DataProto.concat([batch(one), batch(other, one)])
    referring = DataProto.concat([refer(batch(one), MOVED, store), refer(batch(other, one), MOVED, store)])
    rows = data.draw(st.lists(st.integers(0, one + other - 1), min_size=1, max_size=9))
    assert_equal(resolve(referring.select_idxs(rows)), whole.select_idxs(rows))
    assert_equal(DataProto.concat([resolve(part) for part in referring.chunk(3)]), whole)


def test_a_referring_batch_has_no_values() -> None:
    original = batch(3)
    referring = refer(original, MOVED, MemoryColumnStore())
    assert set(referred(referring)) == set(MOVED)
    assert list(referring.batch) == ["mask"]
    assert "prompts" in original.batch
    with pytest.raises(MissingColumnError, match="prompts"):
        referring.batch.ragged("prompts")
    with pytest.raises(MissingColumnError, match="nothing_there"):
        refer(original, ["nothing_there"], MemoryColumnStore())


def test_a_batch_without_references_or_rows_stays_as_it_is() -> None:
    plain = batch(2)
    assert resolve(plain) is plain
    empty = resolve(refer(batch(2), MOVED, MemoryColumnStore()).select_idxs([]))
    assert (len(empty), empty.batch.ragged("prompts").dtype, len(empty.non_tensor_batch["image"])) == (0, torch.long, 0)


def test_batches_that_refer_to_other_columns_unite() -> None:
    store = MemoryColumnStore()
    some, others = batch(3).select(["score"], ["uid"]), batch(3).select(["prompts"], ["image"])
    united = refer(some, ["score"], store).union(refer(others, ["prompts", "image"], store))
    assert set(referred(united)) == set(MOVED)
    assert_equal(resolve(united), batch(3))


def test_a_batch_of_references_alone_takes_further_columns() -> None:
    alone = DataProto.concat([refer(batch(2).select(MOVED[:2], []), MOVED[:2], MemoryColumnStore())]).select()
    alone.batch["more"] = torch.ones(2)
    assert len(resolve(alone)) == 2


def test_rows_of_several_stores_are_put_together() -> None:
    first, second = batch(2), batch(3, first=10)
    parts = [refer(part, MOVED, MemoryColumnStore()) for part in (first, second)]
    assert_equal(resolve(DataProto.concat(parts)), DataProto.concat([first, second]))


def test_what_was_dropped_is_gone() -> None:
    store = MemoryColumnStore()
    referring = refer(batch(2), MOVED, store)
    drop(referring)
    drop(referring)
    with pytest.raises(BatchError, match="not in the store"):
        resolve(referring)
    kept = refer(batch(2), MOVED, store)
    store.close()
    with pytest.raises(BatchError, match="not in the store"):
        resolve(kept)


def test_the_memory_of_a_process_is_not_sent_to_others() -> None:
    with pytest.raises(BatchError, match="use RayColumnStore"):
        pickle.dumps(refer(batch(1), MOVED, MemoryColumnStore()))
