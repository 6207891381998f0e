"""Batches whose rows must divide by something, and rows that become batches."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch

from agentverl.protocol.batch_errors import BatchError
from agentverl.protocol.columns import Column, object_array
from agentverl.protocol.data_proto import DataProto, DataProtoItem
from agentverl.protocol.ragged import Ragged
from agentverl.protocol.unfolding import fold_arrays, fold_columns, unfold_batch_arrays, unfold_batch_columns


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """The batch with rows from its front appended (again and again where needed) until its length divides.

    Returns:
        the padded batch, and how many rows were added. An empty batch is returned as it is, with a warning.
    """
    if size_divisor < 1:
        raise BatchError(f"size_divisor must be at least 1, got {size_divisor}")
    if len(data) == 0:
        warnings.warn("padding an empty DataProto changes nothing", stacklevel=2)
        return data, 0
    pad_size = -len(data) % size_divisor
    if not pad_size:
        return data, 0
    return data.select_idxs(np.arange(len(data) + pad_size) % len(data)), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """The batch without its last `pad_size` rows."""
    return data.slice(0, len(data) - pad_size) if pad_size else data


def collate_fn(items: Sequence[DataProtoItem]) -> DataProto:
    """Rows become a batch again; columns that were ragged, or whose rows differ in length, are ragged."""
    if not items:
        raise BatchError("cannot collate an empty list of rows")
    columns: dict[str, Column] = {}
    for name in items[0].batch:
        rows = [item.batch[name] for item in items]
        ragged = name in items[0].ragged or len({row.shape for row in rows}) > 1
        columns[name] = Ragged.from_list(rows) if ragged else torch.stack(rows)
    names = items[0].non_tensor_batch
    arrays = {name: object_array(item.non_tensor_batch[name] for item in items) for name in names}
    return DataProto.concat([DataProto(columns, arrays), DataProto(meta_info=items[0].meta_info)])


def fold_batch_dim(data: DataProto, new_batch_size: int) -> DataProto:
    """(B, ...) to (new_batch_size, B / new_batch_size, ...), in all columns."""
    if new_batch_size < 1 or len(data) % new_batch_size:
        raise BatchError(f"{len(data)} rows cannot be folded into {new_batch_size}")
    return DataProto(
        fold_columns(data.batch, new_batch_size), fold_arrays(data.non_tensor_batch, new_batch_size), data.meta_info
    )


def unfold_batch_dim(data: DataProto, batch_dims: int = 2) -> DataProto:
    """The first `batch_dims` dimensions of all columns become one."""
    return DataProto(
        unfold_batch_columns(data.batch, batch_dims),
        unfold_batch_arrays(data.non_tensor_batch, batch_dims),
        data.meta_info,
    )
