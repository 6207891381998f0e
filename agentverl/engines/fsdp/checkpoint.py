"""Write the state of an engine into a folder, and read it back."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from agentverl.errors import RunFolderError

WEIGHTS_FILE, OPTIMIZER_FILE, EXTRA_FILE = "model.safetensors", "optimizer.pt", "extra.pt"


def save_weights(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write named tensors."""
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)


def load_weights(folder: Path, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Read tensors with exactly the names and shapes of `like`.

    Raises:
        RunFolderError: the file is missing, damaged or of another model.
    """
    try:
        tensors: dict[str, torch.Tensor] = load_file(folder / WEIGHTS_FILE)
    except Exception as error:  # safetensors raises its own types beside those of the file system
        raise RunFolderError(f"checkpoint {folder} has no readable {WEIGHTS_FILE}: {error}") from error
    wrong = sorted(tensors.keys() ^ like.keys()) or sorted(
        name for name, tensor in like.items() if tensors[name].shape != tensor.shape
    )
    if wrong:
        raise RunFolderError(
            f"checkpoint {folder} belongs to another model: {wrong[0]} and {len(wrong) - 1} more tensors differ"
        )
    return tensors


def save_state(file: Path, state: Mapping[str, Any]) -> None:
    """Write an optimiser's state or the like."""
    torch.save(dict(state), file)


def load_state(file: Path, device: str) -> dict[str, Any]:
    """Read what `save_state` wrote.

    Raises:
        RunFolderError: the file is missing or damaged.
    """
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # a damaged file may raise anything
        raise RunFolderError(f"checkpoint file {file} cannot be read: {error}") from error
    return state


def random_state() -> dict[str, Any]:
    """The state of torch's generators, as tensors."""
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Go on with the random numbers that would have come next."""
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def export_model(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write a Hugging Face model folder with these weights in their own type, which its configuration then names."""
    model.save_pretrained(folder, state_dict={name: tensor.detach().cpu() for name, tensor in tensors.items()})
    config = copy.deepcopy(model.config)
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(folder)
