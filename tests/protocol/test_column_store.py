"""Columns that a batch refers to come back unchanged, whatever was done with its rows."""

import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import TrainingStoppedError
from agentverl.protocol.batch_errors import MissingColumnError
from agentverl.protocol.column_store import MemoryColumnStore, blocks_of, drop, held, refer, referred, resolve
from agentverl.protocol.columns import object_array
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged

MOVED = ["prompts", "score", "image"]
MEMORY = MemoryColumnStore()


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


def reordered(one: DataProto, rows: list[int]) -> DataProto:
    ordered = one.select()
    ordered.reorder(rows)
    return ordered


OPERATIONS = st.one_of(
    st.builds(lambda rows: lambda one: one.select_idxs([row % len(one) for row in rows]), st.lists(st.integers(0, 9))),
    st.builds(lambda start, stop: lambda one: one.slice(start, stop), st.integers(0, 3), st.integers(1, 6)),
    st.builds(
        lambda seed: lambda one: reordered(one, np.random.default_rng(seed).permutation(len(one)).tolist()),
        st.integers(0, 99),
    ),
    st.builds(lambda times, side: lambda one: one.repeat(times, side), st.integers(1, 2), st.booleans()),
    st.builds(lambda parts: lambda one: DataProto.concat(list(reversed(one.chunk(parts)))), st.integers(1, 4)),
)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(OPERATIONS, max_size=5))
def test_whatever_is_done_with_rows_is_the_same_on_references_as_on_values(sizes: list[int], done: list[Any]) -> None:
    parts = [batch(size, 10 * number) for number, size in enumerate(sizes)]
    values = DataProto.concat(parts)
    references = DataProto.concat([refer(part, MOVED, MemoryColumnStore()) for part in parts])
    for operation in done:
        if not len(values):
            break
        values, references = operation(values), operation(references)
    assert_equal(resolve(references), values)
    assert_equal(resolve(pickle.loads(pickle.dumps(references))), values)


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
    referring, kept = refer(batch(2), MOVED, store), refer(batch(2), MOVED, store)
    drop(referring)
    drop(referring)
    assert held([*blocks_of(referring), *blocks_of(kept)]) == set(blocks_of(kept))
    with pytest.raises(TrainingStoppedError, match="was dropped"):
        resolve(referring)
    assert_equal(resolve(kept), batch(2))


def test_a_column_lives_no_longer_than_what_refers_to_it() -> None:
    image = np.zeros(3)
    alive, referring = weakref.ref(image), refer(DataProto({}, {"image": object_array([image])}), ["image"], MEMORY)
    del image
    assert alive() is not None
    del referring
    assert alive() is None


def test_references_to_memory_take_their_columns_along() -> None:
    sent = pickle.loads(pickle.dumps(refer(batch(3), MOVED, MEMORY).select_idxs([2, 0])))
    assert_equal(resolve(sent), batch(3).select_idxs([2, 0]))
