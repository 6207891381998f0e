"""Tensors as numpy arrays, the form in which columns cross processes and reach the disk."""

import numpy as np
import torch
from torch import Tensor

_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
