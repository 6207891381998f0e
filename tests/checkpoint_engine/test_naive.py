"""Weights arrive complete and with their version, or not at all."""

from collections.abc import Iterator

import pytest
import torch

from agentverl.checkpoint_engine.naive import NaiveCheckpointEngine
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError

WEIGHTS = [("a", torch.ones(2)), ("b", torch.zeros(3))]


async def test_a_complete_set_arrives_in_order_with_its_version() -> None:
    engine = NaiveCheckpointEngine()
    for version in (4, 5):
        await engine.prepare()
        await engine.build_topology()
        await engine.send_weights(iter(WEIGHTS))
        received = list(engine.receive_weights())
        assert [(name, tensor.data_ptr()) for name, tensor in received] == [
            (name, tensor.data_ptr()) for name, tensor in WEIGHTS
        ]
        await engine.finalize(version)
        assert engine.version == version


async def test_a_set_that_breaks_off_gets_no_version() -> None:
    def breaking() -> Iterator[tuple[str, torch.Tensor]]:
        yield WEIGHTS[0]
        raise RuntimeError("gather failed")

    engine = NaiveCheckpointEngine()
    await engine.prepare()
    await engine.send_weights(breaking())
    with pytest.raises(WeightTransferError, match="gather failed"):
        list(engine.receive_weights())
    with pytest.raises(WeightTransferError, match="version 1 did not arrive"):
        await engine.finalize(1)
    assert engine.version == -1


async def test_a_receiver_that_stops_early_gets_no_version() -> None:
    engine = NaiveCheckpointEngine()
    await engine.prepare()
    await engine.send_weights(WEIGHTS)
    next(engine.receive_weights())
    with pytest.raises(WeightTransferError, match="did not arrive"):
        await engine.finalize(1)


async def test_nothing_is_received_twice_or_unsent() -> None:
    engine = NaiveCheckpointEngine()
    await engine.prepare()
    with pytest.raises(WeightTransferError, match="no weights are being sent"):
        engine.receive_weights()
    await engine.send_weights(WEIGHTS)
    list(engine.receive_weights())
    with pytest.raises(WeightTransferError, match="no weights are being sent"):
        engine.receive_weights()
