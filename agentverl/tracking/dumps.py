"""`trainer.rollout_data_dir` and `validation_data_dir`: a step's samples as `<step>.jsonl`, in verl's columns."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentverl.errors import RunFolderError
from agentverl.tracking.json_lines import dumped


def dump_samples(folder: Path, step: int, samples: Iterable[Mapping[str, Any]]) -> Path:
    """Write the samples of a step, replacing a file of that step.

    Each sample has `input`, `output`, `gts`, `score` and whatever else; `step` is added.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    path = folder / f"{step}.jsonl"
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.writelines(dumped({**sample, "step": step}) for sample in samples)
        unfinished.replace(path)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error
    return path
