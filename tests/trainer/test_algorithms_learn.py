"""Every estimator and every loss, set to suit, teaches the quickstart: no sign is wrong, no reward lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentverl.algorithms.registry import advantage_estimators, policy_losses

CRITIC = ("critic.optim.lr=5e-4", "critic.optim.weight_decay=0", "trainer.total_training_steps=48")
ESTIMATORS: dict[str, tuple[str, ...]] = {
    "gae": (*CRITIC, "algorithm.lam=0.95"),
    "turn_gae": CRITIC,
    "gdpo": ("algorithm.gdpo_reward_keys=[score]",),
    "gigpo": ("algorithm.gamma=0.95",),
    "grpo_passk": ("trainer.total_training_steps=64",),
}
"""What an estimator needs beside its name; the others learn as the quickstart is."""
LOSSES: dict[str, tuple[str, ...]] = {
    "dro": ("actor.policy_loss.dro_beta=0.1",),
    "gspo": ("actor.clip_ratio_low=3e-4", "actor.clip_ratio_high=4e-4", "actor.loss_agg_mode=seq-mean-token-mean"),
    "clip_cov": ("actor.ppo_mini_batch_size=8",),
    "kl_cov": ("actor.ppo_mini_batch_size=8",),
    "bypass_mode": ("algorithm.rollout_correction.bypass_mode=true",),
}
"""The same of a loss."""
LEAST = {"gae": 0.95}


def learnt(folder: Path, words: tuple[str, ...]) -> dict[str, float]:
    """The summary of the quickstart with some words."""
    quiet = (
        "trainer.logger=[file]",
        "trainer.log_val_generations=0",
        "trainer.save_freq=-1",
    )
    command = [sys.executable, "-m", "agentverl", "train", *quiet, "trainer.test_freq=64", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary: dict[str, float] = json.loads((folder / "outputs" / "quickstart" / "summary.json").read_text())
    print(words, summary)  # noqa: T201  (the acceptance run is read by people)
    return summary


def assert_learns(folder: Path, words: tuple[str, ...], least: float = 0.9) -> None:
    summary = learnt(folder, words)
    assert summary["validation_before"] < 0.6
    assert summary["validation_after"] >= least


@pytest.mark.acceptance
@pytest.mark.parametrize("name", advantage_estimators.names())
def test_an_estimator_learns_the_quickstart(tmp_path: Path, name: str) -> None:
    words = (f"algorithm.adv_estimator={name}", *ESTIMATORS.get(name, ()))
    assert_learns(tmp_path, words, LEAST.get(name, 0.9))


@pytest.mark.acceptance
@pytest.mark.parametrize("name", policy_losses.names())
def test_a_loss_learns_the_quickstart(tmp_path: Path, name: str) -> None:
    named = () if name == "bypass_mode" else (f"actor.policy_loss.loss_mode={name}",)
    assert_learns(tmp_path, (*named, *LOSSES.get(name, ())))
