"""The folder of a run is found, locked, compared, and begun, resumed or refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentverl.errors import RunFolderError
from agentverl.settings.compose import compose_words
from agentverl.settings.root import Settings
from agentverl.trainer.run_folder import RunFolder, write_text


@cache
def settings(*words: str) -> Settings:
    return compose_words(words)


def open_run(base: Path, *words: str, resume_mode: str = "auto", **how: Any) -> RunFolder:
    return RunFolder.open(base, settings(*words), resume_mode=resume_mode, **how)


def opened(base: Path, *words: str, **how: Any) -> RunFolder:
    """A folder that is opened and given back at once."""
    run = open_run(base, *words, **how)
    run.close()
    return run


def save(run: RunFolder, *steps: int) -> None:
    for step in steps:
        run.checkpoints.save(step, lambda folder: (folder / "trainer.json").touch())


def test_a_new_run_has_its_configuration_and_nothing_to_go_on_from(tmp_path: Path) -> None:
    run = opened(tmp_path / "outputs" / "run")
    assert run.path == tmp_path / "outputs" / "run"
    assert run.resumed_step is None
    assert "experiment_name: quickstart" in (run.path / "config.yaml").read_text()


def test_an_unfinished_run_goes_on_from_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    first = opened(tmp_path / "run")
    save(first, 9, 10)
    (first.path / "checkpoints" / "global_step_11.unfinished").mkdir()
    second = opened(tmp_path / "run")
    assert second.path == first.path
    assert second.resumed_step == 10
    assert not list(first.path.rglob("*.unfinished"))


def test_a_finished_run_gets_a_numbered_successor(tmp_path: Path) -> None:
    (tmp_path / "run-old").mkdir()
    (tmp_path / "run-2b").mkdir()
    for name in ("run", "run-2", "run-3"):
        run = opened(tmp_path / "run")
        assert run.path.name == name
        assert run.resumed_step is None
        save(run, 4)
        run.write_summary({"steps": 4})
        assert json.loads((run.path / "summary.json").read_text()) == {"steps": 4}
    (tmp_path / "run-11").mkdir()
    assert opened(tmp_path / "run").path.name == "run-11"
    assert opened(tmp_path / "run", resume_mode="disable").path.name == "run-12"
    begun = RunFolder.begin(tmp_path / "run", settings())
    begun.close()
    assert begun.path.name == "run-13"


def test_a_changed_setting_is_refused_by_name_and_what_is_free_is_not(tmp_path: Path) -> None:
    opened(tmp_path / "run")
    before = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(RunFolderError) as caught:
        open_run(tmp_path / "run", "actor.optim.lr=1e-5", "data.train_batch_size=32", "trainer.total_training_steps=9")
    message = str(caught.value)
    assert "actor_rollout_ref.actor.optim.lr: 0.0005 -> 1.0e-05" in message
    assert "data.train_batch_size: 16 -> 32; " in message
    assert "total_training_steps" not in message
    assert "trainer.resume_mode=disable or another trainer.experiment_name" in message
    assert (tmp_path / "run" / "config.yaml").read_text() == before
    opened(tmp_path / "run", "trainer.total_training_steps=9")
    assert "total_training_steps: 9" in (tmp_path / "run" / "config.yaml").read_text()


def test_two_processes_do_not_share_a_run(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    (run.path / "checkpoints" / "global_step_1.unfinished").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="in use by another process"):
        open_run(tmp_path / "run")
    assert (run.path / "checkpoints" / "global_step_1.unfinished").is_dir()
    run.close()
    opened(tmp_path / "run")


def test_a_run_taken_up_at_an_earlier_checkpoint_forgets_what_came_after(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    save(run, 2, 4, 6)
    run.write_summary({"steps": 6})
    again = opened(tmp_path / "elsewhere", resume_mode="resume_path", resume_from=str(run.checkpoints.of(4)))
    assert again.path == run.path
    assert again.resumed_step == 4
    assert again.checkpoints.steps() == [2, 4, 6]
    again.roll_back(4)
    assert again.checkpoints.steps() == [2, 4]
    assert not (run.path / "summary.json").exists()
    assert opened(tmp_path / "run").resumed_step == 4
    with pytest.raises(RunFolderError, match="global_step_6 is no complete checkpoint"):
        open_run(tmp_path / "run", resume_mode="resume_path", resume_from=str(run.checkpoints.of(6)))


def line(step: int) -> str:
    return json.dumps({"step": step, "data": {"loss": 0.5}}) + "\n"


def test_metrics_of_steps_that_are_repeated_are_dropped(tmp_path: Path) -> None:
    run = opened(tmp_path / "run")
    metrics = run.path / "metrics.jsonl"
    assert not run.roll_back(2)
    assert not metrics.exists()
    metrics.write_text(line(0) + line(1) + line(2) + "\n[1]\n" + line(3) + line(4)[:-9])
    assert not run.roll_back(2)
    assert metrics.read_text() == line(0) + line(1) + line(2)
    metrics.write_text(line(0) + line(1) + line(2)[:-5])
    assert run.roll_back(2)
    assert metrics.read_text() == line(0) + line(1)
    assert run.roll_back(-1)
    assert metrics.read_text() == ""


def test_a_folder_that_cannot_be_made_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file/run: Not a directory\. Set trainer\.default_local_dir"):
        open_run(tmp_path / "file" / "run")


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".probe").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=r"run: the disk is full\. Set trainer\.default_local_dir"):
        open_run(tmp_path / "run")
    (tmp_path / "notes").write_text("old")
    (tmp_path / "notes.unfinished").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match="notes: the disk is full"):
        write_text(tmp_path / "notes", "new")
    assert (tmp_path / "notes").read_text() == "old"


def test_a_disk_that_is_nearly_full_is_refused_before_anything_starts(small_disk: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has [12] MiB free; a run needs at least 64 MiB\. Free some"):
        open_run(small_disk / "run")
