"""Checkpoints are complete or absent."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentverl.trainer.checkpoints import CheckpointFolder


def write_files(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "weights.bin").write_bytes(b"w" * 1000)
    (folder / "trainer.json").write_text("{}")


def test_a_saved_step_is_listed_and_holds_its_files(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    assert checkpoints.steps() == []
    checkpoints.save(10, write_files)
    checkpoints.save(5, write_files)
    assert checkpoints.steps() == [5, 10]
    assert (checkpoints.of(10) / "actor" / "weights.bin").read_bytes() == b"w" * 1000


def test_a_write_that_raises_leaves_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)

    def fail(folder: Path) -> None:
        write_files(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(3, fail)
    assert checkpoints.steps() == []
    checkpoints.remove_unfinished()
    assert list(tmp_path.iterdir()) == []


def test_a_kill_during_a_save_leaves_the_previous_checkpoint_only(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from agentverl.trainer.checkpoints import CheckpointFolder
checkpoints = CheckpointFolder(Path({str(tmp_path)!r}))
checkpoints.save(1, lambda folder: (folder / "a").write_text("1"))
def die(folder):
    (folder / "a").write_text("2")
    os.kill(os.getpid(), signal.SIGKILL)
checkpoints.save(2, die)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    checkpoints = CheckpointFolder(tmp_path)
    assert checkpoints.steps() == [1]
    checkpoints.remove_unfinished()
    assert [entry.name for entry in tmp_path.iterdir()] == ["global_step_1"]


def test_only_the_newest_are_kept_whoever_saved_them(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        CheckpointFolder(tmp_path).save(step, write_files)
    CheckpointFolder(tmp_path).keep_newest(2)
    assert CheckpointFolder(tmp_path).steps() == [2, 3]
    CheckpointFolder(tmp_path).keep_newest(None)
    assert CheckpointFolder(tmp_path).steps() == [2, 3]
