"""Memory that one process lends to others of the same machine: they read its tensors where they are."""

import itertools
import os
from typing import Any

import torch


class LentMemory:
    """The lender's side. What it lends has no name in any file system, so nothing outlives the processes."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lent: dict[int, _Lent] = {}

    def lend(self, tensor: torch.Tensor) -> dict[str, Any] | None:
        """Where another process finds the tensor; None where it is not in shared memory (`share_memory_`)."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        storage = tensor.untyped_storage()
        if not storage.is_shared():
            return None
        lent = self._lent.get(storage.data_ptr())
        if lent is None:
            lent = self._lent[storage.data_ptr()] = _Lent(storage, next(self._numbers))
        return {
            "number": lent.number,
            "path": f"/proc/{os.getpid()}/fd/{lent.descriptor}",
            "size": storage.nbytes(),
            "start": tensor.storage_offset() * tensor.element_size(),
        }


class _Lent:
    """Holds on to the memory, so that its address cannot come to mean another one."""

    def __init__(self, storage: Any, number: int) -> None:
        self._storage, self.number = storage, number
        self.descriptor = storage._share_fd_cpu_()[0]  # the storage's own, which closes it


class BorrowedMemory:
    """The borrower's side; memory is mapped once, and for as long as this object lives."""

    def __init__(self) -> None:
        self._mapped: dict[int, torch.Tensor] = {}

    def bytes_at(self, place: dict[str, Any]) -> torch.Tensor:
        """The bytes from the beginning of a lent tensor on."""
        number = place["number"]
        if number not in self._mapped:
            self._mapped[number] = torch.from_file(place["path"], shared=True, size=place["size"], dtype=torch.uint8)
        return self._mapped[number][place["start"] :]
