"""The `agentverl` command: what it imports, its exit codes, its words."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml

import agentverl.cli
from agentverl.cli import cli, run
from agentverl.errors import AgentverlError, DatasetError, RequeueError, TrainingStoppedError
from agentverl.trainer.doctor import Finding, examine

HEAVY = (
    "torch",
    "hydra",
    "omegaconf",
    "transformers",
    "pydantic",
    "rich",
    "numpy",
    "agentverl.settings",
    "agentverl.trainer",
)


def test_help_imports_neither_torch_nor_hydra_nor_any_room() -> None:
    program = (
        f"import sys; from agentverl.cli import run; run(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Usage: agentverl" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_answers_within_half_a_second_of_processor_time() -> None:
    program = "import time; from agentverl.cli import run; run(['--help']); print(time.process_time())"
    seconds = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        seconds.append(float(result.stdout.splitlines()[-1]))
    assert min(seconds) < 0.5


def test_configuring_a_run_does_not_import_torch() -> None:
    program = "import sys; from agentverl.cli import run; run(['train', '--dry-run']); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", ["train", "sft", "rollout", "rescore", "eval", "show", "list", "doctor"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: agentverl {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "sft", "rollout", "rescore", "eval", "show", "list"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([command, "--help"])
    assert f"\n  agentverl {command}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["trian"], ["train", "--dryrun"], ["show"], ["show", "x", "--limit", "0"]], ids=str)
def test_a_wrong_command_line_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert "Error" in capsys.readouterr().err


def test_a_dry_run_prints_yaml_that_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--dry-run", "trainer.seed=3"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["trainer"]["seed"] == 3
    (tmp_path / "again.yaml").write_text(printed)
    assert run(["train", str(tmp_path / "again.yaml"), "--dry-run"]) == 0
    assert capsys.readouterr().out == printed


def test_rescore_takes_the_settings_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["train", "--dry-run", "trainer.seed=3"])
    (tmp_path / "config.yaml").write_text(capsys.readouterr().out)
    assert run(["rescore", str(tmp_path), "reward.score_from=function", "--dry-run"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["trainer"]["seed"], printed["reward"]["score_from"]) == (3, "function")


@pytest.mark.parametrize("command", ["rescore", "show"])
def test_a_folder_that_holds_no_run_is_bad_input(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} ")


def _raiser(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.fixture
def ending() -> Callable[[BaseException], int]:
    """Run a command that ends with an error."""

    def end(error: BaseException) -> int:
        cli.add_command(click.Command("ending", callback=_raiser(error)))
        try:
            return run(["ending"])
        finally:
            del cli.commands["ending"]

    return end


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DatasetError("no column 'prompt'; expected one"), 2, "error: no column 'prompt'; expected one"),
        (TrainingStoppedError("too many failures; see the journal"), 1, "error: too many failures; see the journal"),
        (RequeueError("saved at step 3; start it again"), 75, "error: saved at step 3; start it again"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("odd\nthing"), 1, "error: unexpected RuntimeError at "),
    ],
    ids=str,
)
def test_exit_codes_and_one_clear_line(
    error: BaseException,
    code: int,
    message: str,
    ending: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ending(error) == code
    lines = capsys.readouterr().err.lstrip("\n").splitlines()  # a Ctrl-C leaves the line it was typed on
    assert len(lines) == 1
    assert lines[0].startswith(message)


def test_a_traceback_is_shown_when_asked_for(
    ending: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTVERL_TRACEBACK", "1")
    ending(AgentverlError("stopped"))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_debugging_asks_for_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTVERL_TRACEBACK", "0")
    run(["train", "--dry-run", "trainer.debug=true"])
    assert os.environ["AGENTVERL_TRACEBACK"] == "1"


def test_a_reader_that_has_enough_is_no_failure() -> None:
    command = f"{sys.executable} -c \"from agentverl.cli import main; main(['list', 'settings'])\""
    program = f"{command} | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "0"
    assert result.stderr == ""


def test_list_names_plugins_recipes_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "tools"]) == 0
    assert "calculator" in capsys.readouterr().out
    assert run(["list", "recipes"]) == 0
    assert "quickstart" in capsys.readouterr().out
    assert run(["list", "settings"]) == 0
    assert "trainer.seed" in capsys.readouterr().out


def test_list_refuses_an_unknown_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "widgets"]) == 2
    assert "no kind 'widgets'; expected one of agent_loops" in capsys.readouterr().err


def test_the_doctor_looks_at_machine_and_install(tmp_path: Path) -> None:
    found = {finding.what: finding for finding in examine(tmp_path / "outputs")}
    for what in (
        "python",
        "torch",
        "processor",
        "threads",
        "memory",
        "gpu",
        "outputs",
        "plugins",
        "bubblewrap",
        "docker",
        "ray",
    ):
        assert what in found
    assert found["python"].verdict == "ok"
    assert found["outputs"].verdict == "ok"


def test_the_doctor_names_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file stands here")
    found = {finding.what: finding for finding in examine(tmp_path / "outputs")}
    assert found["outputs"] == Finding(
        "outputs", f"{tmp_path / 'outputs'} cannot be written; set trainer.default_local_dir", "broken"
    )


def test_main_ends_the_process_with_the_exit_code() -> None:
    with pytest.raises(SystemExit) as ended:
        agentverl.cli.main(["list", "widgets"])
    assert ended.value.code == 2
