"""What a checkpoint holds, for tests that compare two."""

from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load


def saved_tensors(folder: Path, part: str = "") -> dict[str, torch.Tensor]:
    """All tensors of an engine's checkpoint, whole; with a part such as `model/` its own, without it in their names."""
    names = FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(held.size, dtype=held.properties.dtype)
        for name, held in names.items()
        if name.startswith(part) and isinstance(held, TensorStorageMetadata)
    }
    load(tensors, checkpoint_id=folder, no_dist=True)
    return {name.removeprefix(part): tensor for name, tensor in tensors.items()}
