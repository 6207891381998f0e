"""Every policy loss, KL term and correction trains for real, and each of its settings counts."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from agentverl.algorithms.registry import policy_losses
from agentverl.settings.compose import compose_words
from agentverl.settings.rollout_correction import PRESETS
from agentverl.trainer.ppo import PPOTrainer
from tests.trainer.runs import SMALL, TIME_AND_MEMORY

pytestmark = pytest.mark.integration

Words = tuple[str, ...]

SEVERAL_STEPS: Words = (
    *SMALL,
    "data.train_size=8",
    "data.train_batch_size=2",
    "data.max_response_length=32",
    "actor.ppo_mini_batch_size=1",
    "actor.ppo_epochs=2",
    "rollout.n=3",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)
"""Four optimiser steps on 2 prompts of 3 samples, so that the policy moves away from the one that sampled."""

REWARD = """
import zlib

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return zlib.crc32(solution_str.encode()) % 1000 / 1000
"""
# Seldom the same for a whole group, so that there is something to learn from.

P = "actor.policy_loss."
C = "algorithm.rollout_correction."

# What makes a loss's settings bind in so short a run, and other values of each of them.
LOSSES: Mapping[str, tuple[Words, list[str]]] = {
    "vanilla": (("actor.clip_ratio_c=1.01",), ["actor.clip_ratio=0.0001", "actor.clip_ratio_c=1.0001"]),
    "cispo": ((), ["actor.clip_ratio_low=0.0001", "actor.clip_ratio_high=0.0001"]),
    "sapo": ((), ["actor.tau_pos=5", "actor.tau_neg=5"]),
    "gspo": (("actor.loss_agg_mode=seq-mean-token-mean",), ["actor.clip_ratio_low=0.0001", "actor.clip_ratio_high=0"]),
    "geo_mean": ((), ["actor.clip_ratio_low=0.0001", "actor.clip_ratio_high=0.0001"]),
    "dppo_tv": (("actor.clip_ratio_c=1.01",), ["actor.clip_ratio=0.0001", "actor.clip_ratio_c=1.0001"]),
    "dppo_kl": (("actor.clip_ratio_c=1.01",), ["actor.clip_ratio=1e-7", "actor.clip_ratio_c=1.0001"]),
    "clip_cov": (
        (P + "clip_cov_ratio=0.5", P + "clip_cov_lb=-9"),
        [P + "clip_cov_ratio=0.1", P + "clip_cov_lb=0.1", P + "clip_cov_ub=-0.1", "actor.clip_ratio=0.0001"],
    ),
    "kl_cov": ((P + "kl_cov_ratio=0.5",), [P + "kl_cov_ratio=0.1", P + "ppo_kl_coef=10"]),
    "gpg": ((), ["actor.loss_agg_mode=seq-mean-token-sum"]),
    "dro": ((P + "dro_beta=0.1",), [P + "dro_beta=10"]),
    "bypass_mode": ((C + "bypass_mode=true",), [C + "loss_type=reinforce", "actor.clip_ratio=0.0001"]),
}

CORRECTIONS: Mapping[str, tuple[Words, list[str]]] = {
    "decoupled": (
        (C + "rollout_is=token",),
        [C + "rollout_is=sequence", C + "rollout_is_threshold=0.5", C + "rollout_is_batch_normalize=true"],
    ),
    "rejecting": (
        (C + "rollout_rs=token_k1", C + "rollout_rs_threshold=0.99_1.01"),
        [C + "rollout_rs=seq_mean_k1", C + "rollout_rs_threshold=2"],
    ),
    "reinforce": (
        (C + "bypass_mode=true", C + "loss_type=reinforce", C + "rollout_is=token"),
        [C + "rollout_is=null", C + "rollout_is_threshold=0.9_1.1", C + "loss_type=ppo_clip " + C + "rollout_is=null"],
    ),
    "KL in the loss": (
        ("actor.use_kl_loss=true", "actor.kl_loss_coef=1"),
        ["actor.kl_loss_coef=2", "actor.kl_loss_type=k1", "actor.kl_loss_type=abs", "actor.kl_loss_type=k2+"],
    ),
    "KL in the reward": (
        ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=10"),
        ["algorithm.kl_ctrl.kl_coef=1", "algorithm.kl_penalty=k2", "algorithm.kl_ctrl.horizon=100"],
    ),
}

LEARNT = (
    "actor/pg_loss",
    "actor/grad_norm",
    "actor/kl_loss",
    "actor/reward_kl_penalty_coeff",
    "critic/advantages/mean",
)

DIFFERENT_PRECISION: Words = ("actor.fsdp_config.dtype=bfloat16", "rollout.dtype=float32")
"""Training rounds where sampling does not, so that there is something to correct."""


def trained(folder: Path, words: Words, *, steps: int) -> list[dict[str, float]]:
    """The metrics of each step, without time and memory."""
    reward = folder / "reward.py"
    reward.write_text(REWARD)
    more = (f"reward.custom_reward_function.path={reward}", "trainer.total_training_steps=4")
    runs = folder / f"run{len(list(folder.iterdir()))}"
    trainer = PPOTrainer(compose_words((*SEVERAL_STEPS, *more, *words, f"trainer.default_local_dir={runs}")))
    try:
        trainer.begin()
        metrics = [trainer.train_step() for _ in range(steps)]
    finally:
        trainer.end()
    return [{name: value for name, value in step.items() if not name.startswith(TIME_AND_MEMORY)} for step in metrics]


def assert_settings_count(folder: Path, words: Words, others: list[str]) -> None:
    """Three steps with finite numbers; with another value of a setting, other numbers in the first of them."""
    steps = trained(folder, words, steps=3)
    for metrics in steps:
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics["actor/skipped_steps"] == 0
    assert steps[0]["actor/grad_norm"] > 0
    for other in others:
        changed = trained(folder, (*words, *other.split()), steps=2)
        before, after = ([[step.get(name) for name in LEARNT] for step in run[:2]] for run in (steps, changed))
        assert before != after, other


def test_every_policy_loss_is_here() -> None:
    assert sorted(LOSSES) == policy_losses.names()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_policy_loss_takes_three_steps_and_its_settings_count(tmp_path: Path, loss: str) -> None:
    words, others = LOSSES[loss]
    assert_settings_count(tmp_path, (f"actor.policy_loss.loss_mode={loss}", *words), others)


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_every_correction_takes_three_steps_and_its_settings_count(tmp_path: Path, kind: str) -> None:
    words, others = CORRECTIONS[kind]
    assert_settings_count(tmp_path, (*DIFFERENT_PRECISION, *words), others)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_and_tells_how_far_the_policies_are_apart(tmp_path: Path, preset: str) -> None:
    (metrics,) = trained(tmp_path, (*DIFFERENT_PRECISION, C + f"preset={preset}"), steps=1)
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["rollout_corr/kl"] != 0
    assert ("rollout_corr/rollout_is_mean" in metrics) == ("rollout_is" in PRESETS[preset])
    assert ("rollout_corr/rollout_rs_masked_fraction" in metrics) == ("rollout_rs" in PRESETS[preset])
    assert ("training/rollout_probs_diff_mean" in metrics) == preset.startswith(("decoupled", "disabled"))


def test_a_step_whose_tokens_are_all_rejected_changes_nothing_but_the_count(tmp_path: Path) -> None:
    words = (C + "rollout_rs=token_k1", C + "rollout_rs_threshold=1.5_2")
    (metrics,) = trained(tmp_path, words, steps=1)
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 1
    assert (metrics["actor/pg_loss"], metrics["actor/grad_norm"], metrics["actor/skipped_steps"]) == (0, 0, 0)
