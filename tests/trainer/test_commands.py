"""train, eval, rollout and rescore: what they leave behind agrees with what they say."""

import json
import re
from pathlib import Path

import orjson
import pytest

from agentverl.cli import run
from agentverl.tracking.journal import read_journal
from tests.trainer.command import SMALL


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_resumed_run_says_after_which_step_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *SMALL]) == 0
    assert "goes on" not in capsys.readouterr().out
    Path("outputs/quickstart/summary.json").unlink()
    assert run(["train", *SMALL, "trainer.total_training_steps=2"]) == 0
    assert capsys.readouterr().out.startswith("outputs/quickstart goes on after step 1\n")


def test_eval_measures_held_out_tasks_and_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "data.val_size=8", "trainer.logger=file"]) == 0
    folder = Path("outputs/quickstart-eval")
    summary = json.loads((folder / "summary.json").read_text())
    records = list(read_journal(folder / "journal"))
    assert len(records) == summary["trajectories"] == 8
    assert {record["split"] for record in records} == {"val"}
    assert summary["success"] == sum(record["reward_components"]["acc"] for record in records) / 8
    low, high = summary["wilson_interval_95"]
    assert low <= summary["success"] <= high
    assert not (folder / "checkpoints").exists()
    assert "success" in capsys.readouterr().out


def test_rollout_writes_trajectories_and_rescore_judges_them_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(["rollout", "data.train_size=4", "data.train_batch_size=4", "rollout.n=2"]) == 0
    folder = Path("outputs/quickstart-rollout")
    records = {record["trajectory_id"]: record for record in read_journal(folder / "journal")}
    assert len(records) == 8
    Path("length.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"
        "    if extra_info['index'] == 0:\n"
        "        raise ValueError('no score for this one')\n"
        "    return float(len(solution_str))\n"
    )
    capsys.readouterr()
    assert run(["rescore", str(folder), "reward.custom_reward_function.path=length.py"]) == 0
    rescored = [orjson.loads(line) for line in (folder / "rescored.jsonl").read_bytes().splitlines()]
    assert {one["trajectory_id"] for one in rescored} == set(records)
    for one in rescored:
        record = records[one["trajectory_id"]]
        assert one["before"] == record["reward"]
        if record["extra_info"]["index"] == 0:
            assert one["after"] is None
            assert "no score for this one" in one["reason"]
        else:
            said = [
                message["content"] for message in record["outputs"][-1]["messages"] if message["role"] == "assistant"
            ]
            assert one["after"] >= len(said[-1])
    assert "no score for this one" in capsys.readouterr().out
    parts = (
        "{name: world,kind: environment},{name: brief,weight: 0.5,settings: {function: length,maximum: 5,falloff: 5}}"
    )
    batch = "reward.reward_manager.name=batch"
    assert run(["rescore", str(folder), f"reward.components=[{parts}]", batch]) == 0
    for line in (folder / "rescored.jsonl").read_bytes().splitlines():
        one = orjson.loads(line)
        assert one["components"]["world"] == records[one["trajectory_id"]]["reward"]
        assert one["after"] == one["before"] + 0.5 * one["components"]["brief"]
    shown = capsys.readouterr().out
    assert "Mean of each component" in shown
    assert "brief" in shown
    nothing = "def compute_score(data_source, solution_str, ground_truth):\n    return {'score': float('nan')}\n"
    Path("nothing.py").write_text(nothing)
    (journal,) = (folder / "journal").glob("*.jsonl")
    whole = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(whole[:-1]) + whole[-1][:100] + b"\n" + whole[-1][:50])
    assert run(["rescore", str(folder), "reward.custom_reward_function.path=nothing.py"]) == 0
    assert re.search(r"train +7 +- +- +0 +7", capsys.readouterr().out)
    assert f"line {len(whole)} cannot be read and is left out" in caplog.text


def test_a_second_measurement_gets_a_folder_of_its_own() -> None:
    for _ in range(2):
        assert run(["eval", "data.val_size=2", "trainer.logger=file"]) == 0
    assert sorted(path.name for path in Path("outputs").iterdir()) == ["quickstart-eval", "quickstart-eval-2"]
