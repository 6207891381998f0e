"""`agentverl merge`: a model folder from a checkpoint of a run."""

from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from agentverl.errors import RunFolderError
from agentverl.settings.engine import FSDPSettings
from agentverl.settings.model import ModelSettings
from agentverl.trainer.checkpoints import CheckpointFolder
from agentverl.workers.merging import merge as merge_into


def merge(path: Path, output: Path | None) -> Path:
    """Write the model of a checkpoint, or of a run's newest one, as a folder that `model.path` takes.

    Args:
        path: a run's folder or one of its `checkpoints/global_step_N`.
        output: where to; without it `huggingface` in the checkpoint's own folder.

    Raises:
        RunFolderError: there is no such checkpoint, or something stands where the folder should be.
    """
    checkpoint, run = _checkpoint(path)
    folder = _model_folder(checkpoint)
    output = output or folder / "huggingface"
    if output.exists():
        raise RunFolderError(f"{output} exists already; use it, remove it, or name another folder with --output")
    model, fsdp = _sections(yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")))
    difference = merge_into(folder, output, model, fsdp)
    Console().print(
        f"The model of {checkpoint.name} is in {output}; its log-probabilities are those of the checkpoint to "
        f"{difference:.1g}."
    )
    return output


def _checkpoint(path: Path) -> tuple[Path, Path]:
    """A checkpoint and its run's folder."""
    if (path / "config.yaml").is_file():
        checkpoints = CheckpointFolder(path / "checkpoints")
        if not checkpoints.steps():
            raise RunFolderError(f"{path} has no complete checkpoint yet")
        return checkpoints.of(checkpoints.steps()[-1]), path
    run = path.resolve().parent.parent
    if not (run / "config.yaml").is_file():
        raise RunFolderError(
            f"{path} is neither a run's folder nor a checkpoint of one; expected one such as "
            "outputs/quickstart/checkpoints/global_step_16"
        )
    CheckpointFolder(path.resolve().parent).step_of(path.resolve())
    return path, run


def _model_folder(checkpoint: Path) -> Path:
    folder = checkpoint / "actor"
    if not (folder / ".metadata").is_file():
        raise RunFolderError(
            f"{folder} holds no model: it was saved with a checkpoint.save_contents without `model`; name a checkpoint "
            "that was saved with it"
        )
    return folder


def _sections(config: dict[str, Any]) -> tuple[ModelSettings, FSDPSettings]:
    roles = config.get("actor_rollout_ref")
    if roles is None:
        return ModelSettings.model_validate(config["model"]), FSDPSettings.model_validate(config["engine"])
    return (
        ModelSettings.model_validate(roles["model"]),
        FSDPSettings.model_validate(roles["actor"]["fsdp_config"]),
    )
