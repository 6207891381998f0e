"""Checkpoints are complete or absent."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agentverl.errors import RunFolderError, TrainingStoppedError
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

    with pytest.raises(TrainingStoppedError, match=r"global_step_3.*: OSError: disk full\. .*from its beginning"):
        checkpoints.save(3, fail)
    assert list(tmp_path.iterdir()) == []
    checkpoints.save(2, write_files)
    with pytest.raises(TrainingStoppedError, match="it goes on from step 2"):
        checkpoints.save(3, fail)
    assert checkpoints.steps() == [2]


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


def test_a_step_saved_again_replaces_what_was_there(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    checkpoints.save(1, write_files)
    checkpoints.save(1, lambda folder: (folder / "new").touch())
    assert [entry.name for entry in tmp_path.iterdir()] == ["global_step_1"]
    assert [entry.name for entry in checkpoints.of(1).iterdir()] == ["new"]


REMOVALS = {
    "replaced": "checkpoints.save(2, lambda folder: (folder / 'new').touch())",
    "no longer among the newest": "checkpoints.keep_newest(1)",
}


@pytest.mark.parametrize("how", REMOVALS)
def test_a_kill_during_a_removal_leaves_no_half_checkpoint(tmp_path: Path, how: str) -> None:
    """Killed when the first file of a checkpoint is gone, which an audit hook notices."""
    script = f"""
import os, signal, sys
from pathlib import Path
from agentverl.trainer.checkpoints import CheckpointFolder
checkpoints = CheckpointFolder(Path({str(tmp_path)!r}))
for step in (1, 2, 3):
    checkpoints.save(step, lambda folder: [(folder / str(number)).touch() for number in range(9)])
removed = []
def watch(event, arguments):
    if event == "os.remove":
        removed.append(arguments)
        if len(removed) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
{REMOVALS[how]}
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    checkpoints = CheckpointFolder(tmp_path)
    assert [len(list(checkpoints.of(step).iterdir())) for step in checkpoints.steps()][-1] == 9
    assert all(len(list(checkpoints.of(step).iterdir())) in (1, 9) for step in checkpoints.steps())
    checkpoints.remove_unfinished()
    assert {entry.name for entry in tmp_path.iterdir()} == {f"global_step_{step}" for step in checkpoints.steps()}


def test_going_back_sets_later_checkpoints_aside(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path)
    for _ in range(2):
        for step in (1, 2, 3):
            checkpoints.save(step, write_files)
        checkpoints.set_aside_after(1)
    assert checkpoints.steps() == [1]
    assert (tmp_path / "global_step_3.superseded" / "trainer.json").is_file()
    assert checkpoints.step_of(checkpoints.of(1)) == 1
    for name in ("global_step_3", "global_step_last"):
        with pytest.raises(RunFolderError, match=f"{name} is no complete checkpoint; expected .*: global_step_1$"):
            checkpoints.step_of(tmp_path / name)


@pytest.mark.parametrize("how", ["torch", "safetensors", "bytes"])
def test_a_full_disk_keeps_the_checkpoints_before_and_says_so(small_disk: Path, how: str) -> None:
    checkpoints = CheckpointFolder(small_disk / "checkpoints")
    checkpoints.save(1, write_files)

    def write(folder: Path) -> None:
        weights = torch.zeros(10**6)
        if how == "torch":
            torch.save({"weights": weights}, folder / "weights.pt")
        elif how == "safetensors":
            save_file({"weights": weights}, folder / "weights.safetensors")
        else:
            (folder / "weights").write_bytes(weights.numpy().tobytes())

    with pytest.raises(TrainingStoppedError, match=r"with [01] MiB free there: .*it goes on from step 1"):
        checkpoints.save(2, write)
    assert [entry.name for entry in checkpoints.path.iterdir()] == ["global_step_1"]
    checkpoints.save(3, write_files)
    assert checkpoints.steps() == [1, 3]
