"""Weights through the memory of a GPU, to servers in other processes of the same machine."""

import base64
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from agentverl.checkpoint_engine.buckets import Filling, view
from agentverl.checkpoint_engine.streamed import StreamedCheckpointEngine

_DEVICE_ARGUMENT = 6
"""The place of the device's number among the arguments of `rebuild_cuda_tensor`."""


class CUDAIPCCheckpointEngine(StreamedCheckpointEngine):
    """Buckets that the receivers open in the sender's GPU memory: no byte passes through the host.

    A bucket is opened once, and filled again and again. Sender and receivers may have the same GPU, or GPUs that reach
    each other.
    """

    device = "cuda"

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[int, torch.Tensor] = {}

    def connect(self) -> None:
        """Buckets are made when they are needed."""

    def put(self, slot: int, filling: Filling) -> dict[str, Any]:
        told: dict[str, Any] = {"entries": filling.entries}
        buffer = self._buffers.get(slot)
        if buffer is None or len(buffer) < filling.end:
            size = max(filling.end, self.seat.bucket_bytes)
            buffer = self._buffers[slot] = torch.empty(size, dtype=torch.uint8, device=self.device)
            told["handle"] = handle_of(buffer)
        filling.copy_into(buffer)
        self._wait_for_copies()
        return told

    def put_announced(self, slot: int, filling: Filling) -> None:
        """The receivers see the bytes where they are."""

    def get(self, slot: int, told: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        if "handle" in told:
            self._buffers[slot] = opened(told["handle"])
        return self._tensors(self._buffers[slot], told["entries"])

    def _tensors(self, buffer: torch.Tensor, entries: list[Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for entry in entries:
            yield view(buffer, entry)
        self._wait_for_copies()  # of whoever read them, before the sender may fill the bucket again

    def _wait_for_copies(self) -> None:
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()


def handle_of(tensor: torch.Tensor) -> str:
    """What another process needs to open the tensor's memory."""
    shared = reduce_tensor(tensor)
    return base64.b64encode(bytes(ForkingPickler.dumps(shared))).decode()


def opened(handle: str) -> torch.Tensor:
    """The tensor in the memory of another process, which must hold on to it."""
    rebuild, arguments = pickle.loads(base64.b64decode(handle))
    if rebuild is rebuild_cuda_tensor:
        # Processes that see different GPUs number them differently; a handle opens on any that reaches the memory.
        here = torch.cuda.current_device()
        arguments = (*arguments[:_DEVICE_ARGUMENT], here, *arguments[_DEVICE_ARGUMENT + 1 :])
    tensor: torch.Tensor = rebuild(*arguments)
    return tensor
