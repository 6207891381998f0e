"""Weights through shared memory, to servers in other processes of the same machine."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from agentverl.checkpoint_engine.buckets import Filling, view
from agentverl.checkpoint_engine.lent_memory import BorrowedMemory, LentMemory
from agentverl.checkpoint_engine.streamed import StreamedCheckpointEngine

_FOLDER = Path("/dev/shm")


class SharedMemoryCheckpointEngine(StreamedCheckpointEngine):
    """A tensor that is in shared memory already is read where it is; any other one is copied into a bucket.

    Buckets are files in memory that both ends map; their names are gone as soon as all have mapped them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers: dict[int, torch.Tensor] = {}
        self._unnamed: list[tuple[Path, str]] = []
        self._lent, self._borrowed = LentMemory(), BorrowedMemory()

    def connect(self) -> None:
        """Buckets are made when they are needed."""

    def takes_room(self, tensor: torch.Tensor) -> bool:
        """A tensor that is lent needs none, so that all of them are told of at once."""
        return self._lent.lend(tensor) is None

    def put(self, slot: int, filling: Filling) -> dict[str, Any]:
        places = {number: place for number, one in enumerate(filling.tensors) if (place := self._lent.lend(one))}
        told: dict[str, Any] = {
            "entries": filling.entries,
            "places": {str(number): place for number, place in places.items()},
        }
        if len(places) == len(filling.entries):
            return told
        buffer = self._buffers.get(slot)
        if buffer is None or len(buffer) < filling.end:
            size = max(self.seat.bucket_bytes, filling.end)
            path = self._new_file(size)
            buffer = self._buffers[slot] = _mapped(str(path), size)
            told |= {"file": str(path), "size": size}
        filling.copy_into(buffer, left_out=places)
        return told

    def put_announced(self, slot: int, filling: Filling) -> None:
        """The receivers see the bytes where they are."""
        while self._unnamed:
            path, key = self._unnamed.pop()
            self.board.hear_all(key)
            path.unlink()

    def get(self, slot: int, told: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        if "file" in told:
            self._buffers[slot] = _mapped(told["file"], told["size"])
            self.board.tell_mine(f"mapped{told['file']}")
        return self._tensors(slot, told)

    def _tensors(self, slot: int, told: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for number, (name, type_name, shape, start) in enumerate(told["entries"]):
            place = told["places"].get(str(number))
            if place is None:
                yield view(self._buffers[slot], (name, type_name, shape, start))
            else:
                yield view(self._borrowed.bytes_at(place), (name, type_name, shape, 0))

    def _new_file(self, size: int) -> Path:
        # Containers often have 64 MB there, and writing to what does not fit ends a process without a word.
        fits = _FOLDER.is_dir() and shutil.disk_usage(_FOLDER).free > 2 * size
        descriptor, name = tempfile.mkstemp(prefix="agentverl-weights-", dir=_FOLDER if fits else None)
        os.close(descriptor)
        self._unnamed.append((Path(name), f"mapped{name}"))
        return Path(name)


def _mapped(path: str, size: int) -> torch.Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
