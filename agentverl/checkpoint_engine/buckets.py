"""Buckets: tensors side by side in one buffer, with a list of what lies where."""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch

_ALIGNMENT = 64
"""Bytes; views of every type begin at its multiples."""

Entry = tuple[str, str, list[int], int]
"""Name, type, shape and first byte of a tensor."""


def place(name: str, tensor: torch.Tensor, start: int) -> tuple[Entry, int]:
    """The entry of a tensor that begins at or after a byte, and the byte after it."""
    start = -(-start // _ALIGNMENT) * _ALIGNMENT
    entry = (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), start)
    return entry, start + tensor.numel() * tensor.element_size()


def view(buffer: torch.Tensor, entry: Entry | list[Any]) -> tuple[str, torch.Tensor]:
    """The tensor of an entry, in the memory of the buffer (bytes)."""
    name, type_name, shape, start = entry
    dtype: torch.dtype = getattr(torch, type_name)
    count = 1
    for length in shape:
        count *= length
    bytes_of_it = buffer[start : start + count * dtype.itemsize]
    return name, bytes_of_it.view(dtype).view(shape)


def fill(
    weights: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int, takes_room: Callable[[torch.Tensor], bool]
) -> Iterator["Filling"]:
    """Tensors in groups that fit into a bucket, in order; of those that take room, a larger one is alone."""
    filling = Filling()
    for name, tensor in weights:
        if not takes_room(tensor):
            filling.add(place(name, tensor, 0)[0], tensor, filling.end)
            continue
        entry, end = place(name, tensor, filling.end)
        if filling.end and end > bucket_bytes:
            yield filling
            filling = Filling()
            entry, end = place(name, tensor, 0)
        filling.add(entry, tensor, end)
    if filling.entries:
        yield filling


class Filling:
    """What goes into one bucket."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.end = 0
        self.tensors: list[torch.Tensor] = []

    def add(self, entry: Entry, tensor: torch.Tensor, end: int) -> None:
        self.entries.append(entry)
        self.tensors.append(tensor)
        self.end = end

    @torch.no_grad()
    def copy_into(self, buffer: torch.Tensor, left_out: Container[int] = ()) -> None:
        """Copy the tensors to their places, but for those with these numbers."""
        for number, (entry, tensor) in enumerate(zip(self.entries, self.tensors, strict=True)):
            if number not in left_out:
                view(buffer, entry)[1].copy_(tensor)
