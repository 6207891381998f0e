"""Checkpoints that are complete or absent: written beside their name, synced to disk, then renamed."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentverl.errors import RunFolderError, TrainingStoppedError

_COMPLETE = re.compile(r"global_step_(\d+)")
_UNFINISHED_SUFFIX = ".unfinished"


class CheckpointFolder:
    """The folder `checkpoints/` of a run, holding `global_step_N/` for each saved step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        if not self.path.is_dir():
            return []
        matches = (_COMPLETE.fullmatch(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return sorted(int(match.group(1)) for match in matches if match)

    def of(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.path / f"global_step_{step}"

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a folder, then give it its final name; a crash at any moment leaves no half checkpoint.

        Raises:
            TrainingStoppedError: it cannot be written.
        """
        self.begin(step, write)
        return self.complete(step)

    def begin(self, step: int, write: Callable[[Path], None]) -> None:
        """Let `write` fill a folder, which may go on afterwards; it is no checkpoint before `complete`.

        Raises:
            TrainingStoppedError: it cannot be written.
        """
        unfinished = self._unfinished(step)
        shutil.rmtree(unfinished, ignore_errors=True)
        with self._failing(unfinished):
            unfinished.mkdir(parents=True)
            write(unfinished)

    def complete(self, step: int, wait: Callable[[], None] | None = None) -> Path:
        """Give the folder that `begin` filled its final name, once `wait` has returned.

        Raises:
            TrainingStoppedError: it cannot be written.
        """
        final, unfinished = self.of(step), self._unfinished(step)
        with self._failing(unfinished):
            if wait is not None:
                wait()
            _sync(unfinished)
        replaced = self._out_of_the_way(final) if final.exists() else None
        unfinished.rename(final)
        _sync_folder(self.path)
        if replaced is not None:
            shutil.rmtree(replaced)
        return final

    def remove_unfinished(self) -> None:
        """Remove what a killed save or removal left behind."""
        for entry in self.path.glob(f"*{_UNFINISHED_SUFFIX}"):
            shutil.rmtree(entry)

    def keep_newest(self, count: int | None) -> None:
        """Remove all but the newest `count` checkpoints on disk, whichever run of the process saved them."""
        if count is None:
            return
        for step in self.steps()[:-count]:
            shutil.rmtree(self._out_of_the_way(self.of(step)))

    def step_of(self, checkpoint: Path) -> int:
        """The step of a complete checkpoint.

        Raises:
            RunFolderError: it is not one of these checkpoints.
        """
        match = _COMPLETE.fullmatch(checkpoint.name)
        if match is None or int(match.group(1)) not in self.steps():
            names = ", ".join(self.of(step).name for step in self.steps()) or "none"
            raise RunFolderError(f"{checkpoint} is no complete checkpoint; expected one of those beside it: {names}")
        return int(match.group(1))

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints of later steps to `global_step_N.superseded`."""
        for later in [self.of(one) for one in reversed(self.steps()) if one > step]:
            aside = later.with_name(f"{later.name}.superseded")
            shutil.rmtree(aside, ignore_errors=True)
            later.rename(aside)

    def _unfinished(self, step: int) -> Path:
        final = self.of(step)
        return final.with_name(final.name + _UNFINISHED_SUFFIX)

    @contextmanager
    def _failing(self, unfinished: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # torch raises types of its own when a disk is full
            raise self._failed(unfinished, error) from error

    def _failed(self, unfinished: Path, error: Exception) -> TrainingStoppedError:
        free = shutil.disk_usage(next(folder for folder in unfinished.parents if folder.is_dir())).free >> 20
        shutil.rmtree(unfinished, ignore_errors=True)
        last = max(self.steps(), default=None)
        return TrainingStoppedError(
            f"checkpoint {unfinished} cannot be written, with {free} MiB free there: {type(error).__name__}: {error}. "
            f"Mend that and start the run again: it goes on from {'its beginning' if last is None else f'step {last}'}"
        )

    def _out_of_the_way(self, complete: Path) -> Path:
        """Take a checkpoint's name away at once, before its files go one by one."""
        removed = complete.with_name(f"{complete.name}.removed{_UNFINISHED_SUFFIX}")
        shutil.rmtree(removed, ignore_errors=True)
        complete.rename(removed)
        return removed


def _sync(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            with open(Path(root, name), "rb") as file:
                os.fsync(file.fileno())
        _sync_folder(Path(root))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
