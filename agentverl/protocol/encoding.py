"""Tensors as numpy arrays, the form in which columns cross processes and reach the disk."""

import numpy as np
import torch
from torch import Tensor

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NARROWER = [
    (dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in (np.uint8, np.uint16, np.int16, np.int32)
]
_SHORTEST_RUNS = 4
"""Entries a run, on average, from which on runs are sent in place of entries."""

Packed = tuple[np.ndarray, str, np.ndarray | None]
"""Entries, the name of their dtype, and how often each entry stands (None: once)."""


def to_numpy(tensor: Tensor) -> tuple[np.ndarray, str]:
    """The tensor's bytes as an array, and the name of its dtype; types that numpy lacks travel as integers."""
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return tensor.numpy(), name
    except TypeError:  # bfloat16, float8
        return tensor.view(_CARRIERS[tensor.element_size()]).numpy(), name


def from_numpy(encoded: tuple[np.ndarray, str]) -> Tensor:
    """The tensor that `to_numpy` encoded."""
    array, name = encoded
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(getattr(torch, name))


def pack(tensor: Tensor) -> Packed:
    """A tensor (N, ...) in few bytes: equal neighbours once, int64 as the narrowest type that holds its range.

    Masks, temperatures and weights of a batch then take next to nothing, and token ids a quarter or half.
    """
    array, name = to_numpy(tensor)
    times = None
    if array.ndim == 1 and array.dtype.kind in "biuf":
        bits = array.view(f"u{array.itemsize}")  # so that NaN equals itself and -0.0 differs from 0.0
        starts = np.flatnonzero(bits[1:] != bits[:-1]) + 1
        if (len(starts) + 1) * _SHORTEST_RUNS <= len(array):
            starts = np.concatenate([[0], starts])
            times = _narrow(np.diff(starts, append=len(array)))
            array = array[starts]
    return (_narrow(array) if name == "int64" else array), name, times


def unpack(packed: Packed) -> Tensor:
    """The tensor that `pack` packed."""
    array, name, times = packed
    if name == "int64":
        array = array.astype(np.int64)
    return from_numpy((array if times is None else np.repeat(array, times), name))


def _narrow(array: np.ndarray) -> np.ndarray:
    """Integers in the narrowest type that holds them all."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for dtype, least, most in _NARROWER:
        if least <= low and high <= most:
            return array.astype(dtype)
    return array
