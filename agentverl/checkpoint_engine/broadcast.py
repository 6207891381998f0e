"""Weights broadcast over the network: gloo between hosts' memories, nccl between GPUs."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from agentverl.checkpoint_engine.buckets import Filling, view
from agentverl.checkpoint_engine.streamed import StreamedCheckpointEngine


class GlooCheckpointEngine(StreamedCheckpointEngine):
    """Buckets in host memory, in a process group of sender and receivers alone."""

    device = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[int, torch.Tensor] = {}

    def connect(self) -> None:
        self._group = self._make_group(PrefixStore("weights", self.board.store))

    def _make_group(self, store: Store) -> Any:
        seat = self.seat
        return dist.ProcessGroupGloo(store, seat.rank, seat.size, timedelta(seconds=seat.timeout_seconds))

    def put(self, slot: int, filling: Filling) -> dict[str, Any]:
        filling.copy_into(self._buffer(slot, filling.end))
        return {"entries": filling.entries, "end": filling.end}

    def put_announced(self, slot: int, filling: Filling) -> None:
        self._broadcast(slot, filling.end)

    def get(self, slot: int, told: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        self._buffer(slot, told["end"])
        buffer = self._broadcast(slot, told["end"])
        return (view(buffer, entry) for entry in told["entries"])

    def _buffer(self, slot: int, size: int) -> torch.Tensor:
        buffer = self._buffers.get(slot)
        if buffer is None or len(buffer) < size:
            size = max(size, self.seat.bucket_bytes)
            buffer = self._buffers[slot] = torch.empty(size, dtype=torch.uint8, device=self.device)
        return buffer

    def _broadcast(self, slot: int, end: int) -> torch.Tensor:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        buffer = self._buffers[slot][:end]
        self._group.broadcast([buffer], options).wait()
        return buffer


class NCCLCheckpointEngine(GlooCheckpointEngine):
    """Buckets in GPU memory; each end needs a GPU of its own."""

    device = "cuda"

    def _make_group(self, store: Store) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self.seat.timeout_seconds)
        return dist.ProcessGroupNCCL(store, self.seat.rank, self.seat.size, options)
