"""Where the first of four turns decides, crediting turns learns in fewer steps than crediting whole trajectories."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer import delayed_credit

SEEDS = (0, 1, 2, 3, 4)
ENOUGH = 0.8
WINDOW = 10
"""Steps of one prompt each over which success is averaged."""
STEPS = 80
WORDS = (
    f"agent.environment={delayed_credit.__file__}:DelayedCredit",
    "multi_turn.tool_config_path=null",
    f"multi_turn.max_assistant_turns={delayed_credit.TURNS}",
    "multi_turn.max_tokens_per_turn=32",
    "data.max_response_length=320",
    "data.train_size=512",
    "data.train_batch_size=1",
    "actor.ppo_mini_batch_size=1",
    "rollout.n=4",
    "actor.optim.lr=2e-4",
    "actor.optim.lr_scheduler_type=constant",
    "~actor.optim.min_lr_ratio",
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.log_val_generations=0",
    "trainer.logger=[file]",
)
OF_ITS_OWN = {
    "grpo": (),
    "gigpo": ("algorithm.step_advantage_weight=4",),
    "turn_gae": (
        "critic.optim.lr=1e-3",
        "critic.optim.weight_decay=0",
        "critic.ppo_epochs=4",
        "critic.cliprange_value=10",
    ),
}


def steps_to_success(folder: Path, estimator: str, seed: int) -> int:
    """Steps until the mean success of the last ones is high enough; one more than all where it never is."""
    words = [*WORDS, *OF_ITS_OWN[estimator], f"algorithm.adv_estimator={estimator}", f"trainer.seed={seed}"]
    name = f"{estimator}-{seed}"
    command = [sys.executable, "-m", "agentverl", "train", *words, f"trainer.experiment_name={name}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (folder / "outputs" / name / "metrics.jsonl").read_text().splitlines()
    success = [json.loads(line)["data"]["critic/score/mean"] for line in lines]
    means = [sum(success[step - WINDOW : step]) / WINDOW for step in range(WINDOW, len(success) + 1)]
    return next((step for step, mean in enumerate(means, WINDOW) if mean >= ENOUGH), STEPS + 1)


@pytest.fixture(scope="module")
def steps_of_grpo(tmp_path_factory: pytest.TempPathFactory) -> dict[int, int]:
    """By seed, the steps that crediting whole trajectories takes."""
    folder = tmp_path_factory.mktemp("grpo")
    return {seed: steps_to_success(folder, "grpo", seed) for seed in SEEDS}


@pytest.mark.acceptance
@pytest.mark.parametrize("estimator", ["gigpo", "turn_gae"])
def test_crediting_turns_takes_fewer_steps_than_crediting_trajectories(
    tmp_path: Path, estimator: str, steps_of_grpo: dict[int, int]
) -> None:
    steps = {seed: steps_to_success(tmp_path, estimator, seed) for seed in SEEDS}
    print(f"{estimator} {steps}, grpo {steps_of_grpo}")  # noqa: T201  (read by people)
    assert all(taken <= STEPS for taken in steps.values())
    assert sum(steps[seed] < steps_of_grpo[seed] for seed in SEEDS) >= 4
