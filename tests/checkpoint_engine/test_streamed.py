"""Weights stream to other processes completely and with their version, or not at all."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentverl.checkpoint_engine.broadcast import GlooCheckpointEngine
from agentverl.checkpoint_engine.cuda_ipc import CUDAIPCCheckpointEngine
from agentverl.checkpoint_engine.seats import Seat
from agentverl.checkpoint_engine.shared_memory import SharedMemoryCheckpointEngine
from agentverl.checkpoint_engine.streamed import StreamedCheckpointEngine
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError
from agentverl.single_controller.ports import free_port
from tests.engines.ranks import on_ranks


class SharedBucketsCheckpointEngine(CUDAIPCCheckpointEngine):
    """The engine of CUDA IPC with its buckets in host memory, which torch shares by the same calls; no GPU."""

    device = "cpu"

    def connect(self) -> None:
        torch.multiprocessing.set_sharing_strategy("file_system")


ENGINES = [SharedMemoryCheckpointEngine, GlooCheckpointEngine, SharedBucketsCheckpointEngine]
BUCKET_BYTES = 1000

Kind = type[StreamedCheckpointEngine]


def free_address() -> str:
    return f"127.0.0.1:{free_port(None)}"


def seat_of(address: str) -> Seat:
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    return Seat(rank=rank, size=size, address=address, bucket_bytes=BUCKET_BYTES, timeout_seconds=60.0)


def weights_of(version: int) -> dict[str, torch.Tensor]:
    """Types and sizes of all kinds: scalars, nothing, larger than a bucket."""
    sizes = {"scalar": (), "few": (3,), "none": (0, 4), "much": (40, 30), "some": (9, 9), "more": (200,)}
    types = (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, torch.int64, torch.float32)
    weights = {
        name: torch.full(size, version, dtype=dtype) for (name, size), dtype in zip(sizes.items(), types, strict=True)
    }
    for name in ("few", "much"):
        weights[name].share_memory_()
    return weights


async def one_update(engine: StreamedCheckpointEngine, seat: Seat, version: int) -> dict[str, torch.Tensor]:
    await engine.prepare()
    await engine.build_topology(seat)
    received: dict[str, torch.Tensor] = {}
    if seat.sends:
        await engine.send_weights(weights_of(version).items())
    else:
        await asyncio.to_thread(lambda: received.update((name, one.clone()) for name, one in engine.receive_weights()))
    await engine.finalize(version)
    return received


def updates(kind: Kind, address: str) -> list[dict[str, torch.Tensor]]:
    engine = kind()

    async def run() -> list[dict[str, torch.Tensor]]:
        received, seat, notes = [], seat_of(address), []
        for version in range(3):
            received.append(await one_update(engine, seat, version))
            notes.append(engine.board.store.num_keys() if seat.sends else 0)
        assert notes[1] == notes[2], "what is told about an update stays on the board"
        return received

    received = asyncio.run(run())
    assert engine.version == 2
    return received


@pytest.mark.parametrize("kind", ENGINES)
def test_complete_sets_arrive_at_all_receivers_with_their_versions(kind: Kind) -> None:
    _, *receivers = on_ranks(3, updates, kind, free_address())
    for received in receivers:
        for version, weights in enumerate(received):
            expected = weights_of(version)
            assert list(weights) == list(expected)
            for name, tensor in expected.items():
                assert weights[name].dtype == tensor.dtype
                assert torch.equal(weights[name], tensor)
    assert not list(Path("/dev/shm").glob("agentverl-weights-*"))


def breaking() -> Iterator[tuple[str, torch.Tensor]]:
    yield from weights_of(1).items()
    raise RuntimeError("gather failed")


def update_that_breaks_off(kind: Kind, address: str) -> int:
    engine, seat = kind(), seat_of(address)

    async def run() -> None:
        await one_update(engine, seat, 0)
        await engine.prepare()
        mine = engine.send_weights(breaking()) if seat.sends else asyncio.to_thread(list, engine.receive_weights())
        with pytest.raises(WeightTransferError, match="gather failed"):
            await mine
        with pytest.raises(WeightTransferError, match="version 1 did not arrive"):
            await engine.finalize(1)
        await one_update(engine, seat, 2)

    asyncio.run(run())
    return engine.version


@pytest.mark.parametrize("kind", ENGINES)
def test_a_set_that_breaks_off_gets_no_version_and_the_next_one_arrives(kind: Kind) -> None:
    assert on_ranks(2, update_that_breaks_off, kind, free_address()) == [2, 2]


def update_that_one_refuses(kind: Kind, address: str) -> Any:
    engine, seat = kind(), seat_of(address)

    async def run() -> str:
        await engine.prepare()
        await engine.build_topology(seat)
        if seat.sends:
            await engine.send_weights(weights_of(1).items())
            with pytest.raises(WeightTransferError) as raised:
                await engine.finalize(1)
            return str(raised.value)
        if seat.rank == 1:
            next(engine.receive_weights())
            await engine.refuse()
            return "refused"
        await asyncio.to_thread(list, engine.receive_weights())
        await engine.finalize(1)
        return f"version {engine.version}"

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ENGINES)
def test_a_receiver_that_refuses_a_set_holds_up_nobody(kind: Kind) -> None:
    assert on_ranks(3, update_that_one_refuses, kind, free_address()) == [
        "version 1 did not arrive completely at receivers 1",
        "refused",
        "version 1",
    ]


async def test_ends_that_do_not_meet_say_so() -> None:
    seat = Seat(rank=1, size=2, address=free_address(), timeout_seconds=0.1)
    with pytest.raises(WeightTransferError, match="nobody met"):
        await SharedMemoryCheckpointEngine().build_topology(seat)
