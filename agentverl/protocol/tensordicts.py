"""DataProto from and to a TensorDict; the only module that needs the optional package tensordict."""

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from agentverl.protocol.columns import Column, Columns, object_array
from agentverl.protocol.ragged import Ragged


def make_tensordict(
    rows: int, batch: Columns, non_tensor_batch: dict[str, np.ndarray], meta_info: dict[str, Any]
) -> Any:
    """Columns as tensors (ragged ones jagged), objects as stacks of NonTensorData, meta_info as NonTensorData."""
    entries: dict[str, Any] = {name: _as_tensor(column) for name, column in batch.items()}
    for name, array in non_tensor_batch.items():
        entries[name] = NonTensorStack(*[NonTensorData(value) for value in array])
    for name, value in meta_info.items():
        entries[name] = NonTensorData(value, batch_size=list(batch.batch_size) if batch else [rows])
    return TensorDict(entries, batch_size=batch.batch_size if batch else [rows])


def split_tensordict(tensor_dict: Any) -> tuple[dict[str, Column], dict[str, np.ndarray], dict[str, Any]]:
    """What `make_tensordict` put together: columns, arrays of objects, meta_info."""
    tensors: dict[str, Column] = {}
    arrays: dict[str, np.ndarray] = {}
    meta_info: dict[str, Any] = {}
    for name, value in tensor_dict.items():
        if isinstance(value, Tensor):
            tensors[name] = Ragged.from_list(value.unbind()) if value.is_nested else value
        elif isinstance(value, NonTensorStack):
            arrays[name] = object_array(value.tolist())
        else:
            meta_info[name] = getattr(value, "data", value)
    return tensors, arrays, meta_info


def _as_tensor(column: Column) -> Tensor:
    if isinstance(column, Ragged):
        return torch.nested.nested_tensor_from_jagged(column.values, column.offsets)
    return column
