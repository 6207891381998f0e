"""The quickstart keeps its word: a small model learns to call the calculator, in time and in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONGEST_SECONDS = 120
MOST_BYTES = 2 * 2**30


def quickstart(folder: Path, seed: int) -> dict[str, float]:
    """Run `agentverl train` as a person would, and return its summary."""
    command = [sys.executable, "-m", "agentverl", "train", f"trainer.seed={seed}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "agentverl show outputs/quickstart" in done.stdout
    run = folder / "outputs" / "quickstart"
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    summary: dict[str, float] = json.loads((run / "summary.json").read_text())
    return summary


def assert_learnt(summary: dict[str, float]) -> None:
    assert 0.2 <= summary["validation_before"] <= 0.6, summary
    assert summary["validation_after"] >= 0.95, summary
    assert summary["tool_call_rate_after"] >= 0.9, summary
    assert summary["wall_seconds"] <= LONGEST_SECONDS, summary
    assert summary["peak_memory_bytes"] <= MOST_BYTES, summary


def test_the_quickstart_learns(tmp_path: Path) -> None:
    assert_learnt(quickstart(tmp_path, 0))


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_quickstart_learns_with_every_seed(tmp_path: Path, seed: int) -> None:
    summary = quickstart(tmp_path, seed)
    print(seed, summary)  # noqa: T201  (the acceptance run is read by people)
    assert_learnt(summary)
