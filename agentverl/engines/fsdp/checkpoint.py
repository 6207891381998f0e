"""Checkpoints of an engine by DCP: each rank writes and reads its share, and their number may change in between."""

import copy
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader as loader
from torch.distributed.checkpoint import state_dict_saver as saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from transformers import PreTrainedModel

from agentverl.engines.fsdp.ranks import Ranks
from agentverl.errors import RunFolderError

# DCP says of every save and load of one rank that it is one of one rank.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)

Tensors = Mapping[str, torch.Tensor]
"""By names such as `model/lm_head.weight`, whose first part says what they belong to."""


def save(folder: Path, tensors: Tensors, ranks: Ranks | None) -> None:
    """Write tensors into an existing folder, all ranks together."""
    with _plainly():
        saver.save(dict(tensors), checkpoint_id=folder, **_together(ranks))


def start_saving(folder: Path, tensors: Tensors, ranks: Ranks | None) -> "Future[Any]":
    """Copy the tensors to host memory and write them from there; the result says that they are on disk."""
    # The copies of what lies on a CPU are ours: DCP would write from the tensors that training goes on to change.
    staged = {name: tensor.clone() if tensor.device.type == "cpu" else tensor for name, tensor in tensors.items()}
    started = saver.async_save(staged, checkpoint_id=folder, **_together(ranks))
    assert isinstance(started, Future)
    return started


def finish_saving(started: "Future[Any]") -> None:
    """Wait until it is on disk."""
    with _plainly():
        started.result()


def load(folder: Path, tensors: Tensors, ranks: Ranks | None) -> None:
    """Fill the tensors with what was saved under their names.

    Raises:
        RunFolderError: the checkpoint is missing, damaged or of another model.
    """
    _require_same_model(folder, tensors)
    try:
        with _plainly():
            loader.load(dict(tensors), checkpoint_id=folder, **_together(ranks))
    except Exception as error:  # a damaged file may raise anything
        raise RunFolderError(f"checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error


def saved_names(folder: Path) -> set[str]:
    """The names of all tensors of a checkpoint.

    Raises:
        RunFolderError: there is none, or its list of contents is damaged.
    """
    return set(_metadata(folder).state_dict_metadata)


def _metadata(folder: Path) -> Metadata:
    try:
        return FileSystemReader(folder).read_metadata()
    except Exception as error:  # unpickling a damaged file may raise anything
        raise RunFolderError(f"checkpoint {folder} has no readable list of contents (.metadata): {error}") from error


def _require_same_model(folder: Path, tensors: Tensors) -> None:
    """The parts that the tensors belong to must hold exactly these names and shapes."""
    saved = _metadata(folder).state_dict_metadata
    sizes = {name: held.size for name, held in saved.items() if isinstance(held, TensorStorageMetadata)}
    parts = {_part(name) for name in tensors} - {"extra"}
    names = {name for name in sizes if _part(name) in parts}
    wrong = sorted(names ^ {name for name in tensors if _part(name) in parts}) or sorted(
        name for name in names if sizes[name] != tensors[name].shape
    )
    if wrong:
        raise RunFolderError(
            f"checkpoint {folder} belongs to another model: {wrong[0]} and {len(wrong) - 1} more tensors differ"
        )


def _part(name: str) -> str:
    return name.partition("/")[0]


def _together(ranks: Ranks | None) -> dict[str, Any]:
    """One rank asks nobody; many agree in a group of their own, so that training may go on in the other one."""
    return {"no_dist": True} if ranks is None else {"process_group": ranks.checkpoint_group}


@contextmanager
def _plainly() -> Iterator[None]:
    """Raise what went wrong on the first rank that failed: DCP wraps it into what is not even an Exception."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def random_state(prefix: str, rank: int) -> dict[str, torch.Tensor]:
    """The state of a rank's generators, by names."""
    state = {f"{prefix}{rank}/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state[f"{prefix}{rank}/cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(prefix: str, rank: int, state: Tensors) -> None:
    """Go on with the random numbers that would have come next; nothing changes for what was not saved."""
    if (cpu := state.get(f"{prefix}{rank}/cpu")) is not None:
        torch.set_rng_state(cpu)
    if (cuda := state.get(f"{prefix}{rank}/cuda")) is not None:
        torch.cuda.set_rng_state(cuda)


def export_model(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write a Hugging Face model folder with these weights in their own type, which its configuration then names."""
    model.save_pretrained(folder, state_dict={name: tensor.detach().cpu() for name, tensor in tensors.items()})
    config = copy.deepcopy(model.config)
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(folder)
