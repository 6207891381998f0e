"""Which tensors stand together in a bucket."""

import torch

from agentverl.checkpoint_engine.buckets import fill

LENT = {"b", "d", "e"}


def names_by_bucket(bucket_bytes: int) -> list[list[str]]:
    tensors = {name: torch.zeros(16) for name in "abcdef"}  # 64 bytes each
    lent = {tensor.data_ptr() for name, tensor in tensors.items() if name in LENT}
    fillings = fill(tensors.items(), bucket_bytes, lambda tensor: tensor.data_ptr() not in lent)
    return [[entry[0] for entry in filling.entries] for filling in fillings]


def test_tensors_that_take_no_room_stand_with_those_that_do_in_order() -> None:
    assert names_by_bucket(64) == [["a", "b"], ["c", "d", "e"], ["f"]]
    assert names_by_bucket(128) == [["a", "b", "c", "d", "e"], ["f"]]


def test_where_none_takes_room_one_bucket_tells_of_all() -> None:
    tensors = [(str(number), torch.zeros(1000)) for number in range(9)]
    (filling,) = fill(tensors, 64, lambda _: False)
    assert [entry[0] for entry in filling.entries] == [name for name, _ in tensors]
    assert filling.end == 0
