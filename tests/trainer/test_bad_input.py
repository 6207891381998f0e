"""Bad input ends a run before anything heavy starts: told at once, together, by its message and exit code 2."""

import fcntl

import pytest

from tests.trainer.bad_input_cases import CASES, Case
from tests.trainer.command import Command, place, rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_ends_with_2_and_one_clear_line(case: Case, command: Command) -> None:
    ended = command.train(*case.words, files={"file": "", **case.files})
    for message in case.messages:
        assert message in ended.printed
    assert ended.printed.startswith("error: ")
    assert len(ended.printed.splitlines()) == 1
    assert ended.code == 2
    assert not ended.run.exists()
    assert ended.out == ""


def test_all_that_is_wrong_is_told_together(command: Command) -> None:
    ended = command.train(
        "trainer.default_local_dir=file/run",
        "multi_turn.tool_config_path=tools.yaml",
        "reward.custom_reward_function.path=mine.py",
        "data.max_prompt_length=5",
        "rollout.max_model_len=4000",
        files={"file": "", "tools.yaml": "", "mine.py": ""},
    )
    assert ended.code == 2
    assert ended.printed.startswith("error: 5 things keep the run from starting:\n  - ")
    for message in ("file/run", "tools.yaml", "mine.py", "max_prompt_length=5", "max_model_len=4000"):
        assert message in ended.printed


def test_a_mended_run_starts_in_the_same_folder(command: Command) -> None:
    """What could not start holds nothing that the next configuration would have to agree with."""
    assert command.train("data.max_prompt_length=5").code == 2
    ended = command.train()
    assert ended.printed == ""
    assert ended.code == 0
    assert [folder.name for folder in (command.folder / "outputs").iterdir()] == ["quickstart"]


def test_a_folder_in_use_by_another_process_is_refused(command: Command) -> None:
    lock = command.folder / "outputs" / "quickstart" / "logs" / "run.lock"
    place(lock, "")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = command.train()
    assert (ended.code, "outputs/quickstart is in use by another process" in ended.printed) == (2, True)


def test_values_with_signs_blanks_and_brackets_are_values(command: Command) -> None:
    name = "a = b (c) [d], {e}: 100% 'f'"
    tools = "my tools (x=1).yaml"
    ended = command.train(
        f"trainer.experiment_name={name}",
        f"multi_turn.tool_config_path={tools}",
        files={tools: "tools: [calculator]"},
        name=name,
    )
    assert (ended.code, ended.printed) == (0, "")
    assert (ended.run / "summary.json").is_file()


@pytest.mark.parametrize("name", ["eval", "rollout"])
def test_what_only_measures_is_refused_as_early(name: str, command: Command) -> None:
    ended = command(name, "model.path=/nowhere", "multi_turn.tool_config_path=tools.yaml", files={"tools.yaml": ""})
    assert ended.code == 2
    assert ended.printed.startswith("error: 2 things keep the run from starting:\n")
    assert not (command.folder / "outputs").exists()


def test_fine_tuning_tells_all_that_is_wrong_too(command: Command) -> None:
    files = {"file": "", "talk.jsonl": '{"messages": [{"role": "user", "content": "Hello"}]}\n', "val.jsonl": ""}
    words = ["model.path=nano", "data.train_files=talk.jsonl", "data.val_files=val.jsonl"]
    ended = command("sft", *words, "trainer.default_local_dir=file/run", files=files)
    assert ended.code == 2
    for message in (
        "error: 3 things keep the run from starting:\n  - cannot write to file/run",
        "data.train_files: row 0 teaches nothing: it has no assistant message",
        "data.val_files: data file val.jsonl has no rows",
    ):
        assert message in ended.printed


def test_validating_alone_needs_no_training_rows(command: Command) -> None:
    words = ["agent.environment=null", "data.val_files=rows.jsonl", "data.max_response_length=32"]
    ended = command("train", *words, "trainer.val_only=true", "trainer.logger=[file]", files={"rows.jsonl": rows()})
    assert (ended.code, ended.printed) == (0, "")
    assert any(name.startswith("val-core/") for name in ended.metrics())
