"""The folder of a run: found, locked, compared with the configuration, and either begun or resumed."""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentverl.errors import RunFolderError
from agentverl.settings.compose import differences, read_yaml, to_yaml
from agentverl.settings.paths import resolve_path
from agentverl.settings.root import Settings
from agentverl.settings.sft import SFTSettings
from agentverl.single_controller.worker_errors import ResourceError
from agentverl.tracking.json_lines import read_json_lines
from agentverl.trainer.checkpoints import CheckpointFolder

LOWEST_FREE_BYTES = 64 * 1024**2


class RunFolder:
    """`outputs/<experiment_name>/`, or `-2`, `-3`, ... after it once the earlier ones are finished.

    Holds `config.yaml`, `metrics.jsonl`, `summary.json`, `journal/`, `checkpoints/`, `validation/` and `logs/`.
    """

    def __init__(self, path: Path, *, resumed_step: int | None) -> None:
        self.path = path
        self.resumed_step = resumed_step
        """The step of the complete checkpoint to go on from; `None` in a new run."""
        self.checkpoints = CheckpointFolder(path / "checkpoints")
        self._lock: int | None = None
        """A file descriptor, open as long as the run."""
        self._is_new = False

    @classmethod
    def open(
        cls, base: Path, settings: Settings | SFTSettings, *, resume_mode: str, resume_from: str | None = None
    ) -> "RunFolder":
        """Find or make the run's folder and lock it.

        Raises:
            RunFolderError: it cannot be written, is nearly full, is in use by another process, or holds an unfinished
                run of another configuration.
        """
        checkpoint = resolve_path(resume_from) if resume_from else None
        path = checkpoint.parent.parent if checkpoint else _choose(base, fresh=resume_mode == "disable")
        unfinished = (path / "config.yaml").is_file()
        if unfinished:
            _refuse_other_settings(path, settings)
        run = cls(path, resumed_step=None)
        run._prepare()
        run._is_new = not unfinished
        try:
            run.checkpoints.remove_unfinished()
            if checkpoint is not None:
                run.resumed_step = run.checkpoints.step_of(checkpoint)
            elif unfinished:
                run.resumed_step = max(run.checkpoints.steps(), default=None)
            write_text(path / "config.yaml", to_yaml(settings))
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def begin(cls, base: Path, settings: Settings) -> "RunFolder":
        """A new folder, whatever lies beside it: for what is measured at once and never resumed.

        Raises:
            RunFolderError: it cannot be written.
        """
        run = cls(_choose(base, fresh=True), resumed_step=None)
        run._prepare()
        run._is_new = True
        write_text(run.path / "config.yaml", to_yaml(settings))
        return run

    def _prepare(self) -> None:
        for folder in (self.path, self.path / "logs"):
            require_writable(folder, "trainer.default_local_dir")
        free = shutil.disk_usage(self.path).free
        if free < LOWEST_FREE_BYTES:
            raise RunFolderError(
                f"{self.path} has {free >> 20} MiB free; a run needs at least {LOWEST_FREE_BYTES >> 20} MiB. "
                "Free some space or set trainer.default_local_dir to a folder on another disk"
            )
        self._lock = os.open(self.path / "logs" / "run.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise RunFolderError(
                f"{self.path} is in use by another process; wait for it, end it, or choose another name with "
                "trainer.experiment_name=..."
            ) from error

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def withdraw(self) -> None:
        """Take back what `open` made of a new folder: with a run that could not start, a mended one need not agree."""
        if self._is_new:
            for name in ("config.yaml", "logs/run.lock"):
                (self.path / name).unlink(missing_ok=True)
            for folder in (self.path / "logs", self.path):
                with suppress(OSError):  # it holds something else
                    folder.rmdir()
        self.close()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Withdraw where what the run is to stand on is not there."""
        try:
            yield
        except ResourceError:
            self.withdraw()
            raise

    def roll_back(self, step: int) -> bool:
        """Go on after this step, or from before the first with -1: the run is not finished, and later steps not done.

        Later checkpoints are set aside. `metrics.jsonl` loses later steps and a last line that a kill cut short; True
        if it is there and lacks a line of `step` itself.
        """
        self.checkpoints.set_aside_after(step)
        (self.path / "summary.json").unlink(missing_ok=True)
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return False
        kept = {number: record for number, record in read_json_lines(path) if record.get("step", step + 1) <= step}
        lines = path.read_bytes().splitlines()
        write_text(path, "".join(f"{lines[number].decode()}\n" for number in kept))
        return all(record["step"] != step for record in kept.values())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`; its presence says that the run is finished."""
        write_text(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def require_writable(folder: Path, key: str) -> None:
    """Make a folder, where there is none, and write into it.

    Raises:
        RunFolderError: that fails; names the key that leads elsewhere.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error, key) from error


def unwritable(path: Path, error: OSError, key: str = "trainer.default_local_dir") -> RunFolderError:
    """The error for a folder that cannot be written, with the key that leads elsewhere."""
    reasons = {errno.ENOSPC: "the disk is full", errno.EEXIST: "there is a file of that name"}
    reason = reasons.get(error.errno or 0, error.strerror or str(error))
    return RunFolderError(f"cannot write to {path}: {reason}. Set {key} to a folder that can be written")


def _numbered(base: Path) -> list[Path]:
    """The base folder and its numbered successors that exist, oldest first."""
    if not base.parent.is_dir():
        return []
    pattern = re.compile(re.escape(base.name) + r"(?:-(\d+))?")
    found = [
        (int(match.group(1) or 1), entry) for entry in base.parent.iterdir() if (match := pattern.fullmatch(entry.name))
    ]
    return [entry for _, entry in sorted(found)]


def _choose(base: Path, *, fresh: bool) -> Path:
    existing = _numbered(base)
    if not existing:
        return base
    newest = existing[-1]
    used = (newest / "config.yaml").is_file()
    finished = (newest / "summary.json").is_file()
    if not used or not (finished or fresh):
        return newest
    match = re.fullmatch(re.escape(base.name) + r"-(\d+)", newest.name)
    return base.with_name(f"{base.name}-{int(match.group(1)) + 1 if match else 2}")


def _refuse_other_settings(path: Path, settings: Settings | SFTSettings) -> None:
    changed = differences(read_yaml(path / "config.yaml"), settings)
    if changed:
        raise RunFolderError(
            f"{path} holds an unfinished run of another configuration: {'; '.join(changed)}. Resume it with its own "
            "values, or begin a new run with trainer.resume_mode=disable or another trainer.experiment_name"
        )
