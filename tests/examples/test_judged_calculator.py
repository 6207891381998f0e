"""Three rewards at once, one of them a judge that our own server serves: two steps of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentverl.tracking.jsonl import read_metrics

ROOT = Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_two_steps_with_a_served_judge(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    small = ["data.train_batch_size=2", "actor.ppo_mini_batch_size=2", "rollout.n=4", "data.val_size=4"]
    subprocess.run(
        ["bash", "examples/judged_calculator/run.sh", str(tmp_path), *small, "trainer.total_training_steps=2"],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "COUNT": "256"},
        check=True,
    )
    steps = read_metrics(tmp_path / "run")
    assert sorted(steps) == [0, 1, 2]
    for step in (1, 2):
        for component in ("correct", "form", "courtesy"):
            assert 0 <= steps[step][f"reward/{component}/mean"] <= 1
    assert sum(steps[step]["reward/courtesy/prompt_tokens/mean"] for step in (1, 2)) > 0, "the judge was never asked"
    assert "val-aux/arithmetic/courtesy/mean@1" in steps[2]
    assert (tmp_path / "components.png").stat().st_size > 1000
