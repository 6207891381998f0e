"""The programs run, with as little to do as possible."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _programs_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_useful_tokens_reports_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["useful_tokens.py", "--cases", "quickstart", "--steps", "1"])
    importlib.import_module("useful_tokens").main()
    reported = json.loads(capsys.readouterr().out.splitlines()[-1])
    (case,) = reported["cases"]
    assert case["name"] == "quickstart"
    assert case["required"] == pytest.approx(1 / 1.05, abs=1e-4)
    assert reported["ratio"] == pytest.approx(case["ratio"] / case["required"], abs=1e-3)
    assert 0.1 < case["ours"] <= 1.05


@pytest.mark.integration
def test_the_data_plane_sends_a_fifth_at_most() -> None:
    size = ["--trajectories", "64", "--tokens", "4000", "--image-bytes", "150000"]
    program = [sys.executable, str(BENCHMARKS / "data_plane.py"), *size]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    step, calls, packed, _ = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert step["ratio"] >= 5
    assert calls["ratio"] >= 5
    assert packed["ratio"] >= 2.5


def one_turn(script: str, *arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a side answers to one turn, and when it ends."""
    side = importlib.import_module("comparison").Side(
        script, Path(sys.executable), BENCHMARKS / "sides" / script, *arguments, threads=1
    )
    return side.turn(), side.end()


def test_our_side_of_the_step_says_how_long_each_stage_took(tmp_path: Path) -> None:
    tiny_model = importlib.import_module("tiny_model")
    model, rows = tiny_model.build(tmp_path / "model"), tiny_model.write_rows(tmp_path / "rows.jsonl", 4)
    turn, end = one_turn("agentverl_grpo.py", str(model), str(rows), "1", "8", "float32", "keeping")
    assert turn["tokens"] == 8 * 64
    assert 0 < turn["generation_seconds"] + turn["training_seconds"] < turn["seconds"]
    assert end["peak_memory_bytes"] > 2**26


def test_rewards_count_answers_and_refusals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = importlib.import_module("rewards")
    monkeypatch.setattr(sys, "argv", ["rewards.py", "--cases", "limited_judge", "--seconds", "2"])
    rewards.main()
    (case,) = json.loads(capsys.readouterr().out.splitlines()[-1])["cases"]
    assert 300 < case["ours"] < 800
    one = rewards.blocking("blocking_loop", "blocks_loop", turns=1, prompts=1)
    assert one.ours > 0
    assert one.required == 0.9


def test_our_side_of_the_estimators_times_each_of_them() -> None:
    turn, _ = one_turn("estimators.py", "agentverl", "16", "64")
    program = importlib.import_module("advantages")
    assert {*program.BY_ROW, *program.ALONG_TIME, *program.ALONG_TIME.values(), "torch.sum", "gdpo"} <= set(turn)
    assert all(seconds > 0 for seconds in turn.values())


def test_weights_reach_a_server_in_another_process() -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "weights.py", "--gigabytes", "0.02", "--turns", "1", "--warm-up", "0"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    (case,) = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert case["name"] == "shared_memory: 0.05 GB to an hf server"
    assert case["ours"] > 0
    assert case["required"] == pytest.approx(1 / 1.5)


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak within a phase")
def test_memory_reports_every_phase() -> None:
    command = [sys.executable, str(BENCHMARKS / "memory.py"), "--sequences", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    cases = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert [case["name"].partition(":")[0] for case in cases] == ["gen", "update_actor", "update_weights"]
    assert all(case["ratio"] > 0 for case in cases)
