"""How sequences are cut into forward passes changes nothing that a whole training step reports or learns."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentverl.data.model_folder import resolve_model_path
from agentverl.settings.compose import compose_words
from agentverl.trainer.ppo import PPOTrainer
from tests.engines.saved import saved_tensors
from tests.trainer.runs import SMALL, TIME_AND_MEMORY

VARIANTS = {
    "one optimiser step": ("actor.ppo_mini_batch_size=4",),
    "several optimiser steps with every term of the loss": (
        "actor.ppo_mini_batch_size=2",
        "actor.ppo_epochs=2",
        "actor.use_kl_loss=true",
        "actor.entropy_coeff=0.01",
        "actor.loss_agg_mode=seq-mean-token-mean",
        "actor.clip_ratio=0.01",
    ),
    "a critic": ("algorithm.adv_estimator=gae", "algorithm.lam=0.9", "actor.ppo_mini_batch_size=2"),
    "ratios of rows, weights and rejection": (
        "actor.ppo_mini_batch_size=2",
        "actor.ppo_epochs=2",
        "actor.policy_loss.loss_mode=geo_mean",
        "algorithm.rollout_correction.preset=decoupled_seq_is_rs",
        "algorithm.rollout_correction.rollout_is_batch_normalize=true",
    ),
}

REWARD = """
import zlib

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return zlib.crc32(solution_str.encode()) % 1000 / 1000
"""
# Seldom the same for a whole group, so that there is something to learn from most.


def one_step(folder: Path, max_tokens: int, *words: str) -> tuple[Mapping[str, float], Mapping[str, torch.Tensor]]:
    """Metrics and weights after one step."""
    limits = (
        f"actor.ppo_max_token_len_per_gpu={max_tokens}",
        f"rollout.log_prob_max_token_len_per_gpu={max_tokens}",
        f"ref.log_prob_max_token_len_per_gpu={max_tokens}",
        f"critic.ppo_max_token_len_per_gpu={max_tokens}",
    )
    more = ("trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=-1")
    settings = compose_words((*SMALL, *more, *limits, *words, f"trainer.default_local_dir={folder}"))
    trainer = PPOTrainer(settings)
    try:
        trainer.begin()
        metrics = trainer.train_step()
        weights = saved_tensors(trainer.run.checkpoints.of(1) / "actor", "model/")
    finally:
        trainer.end()
    return {name: value for name, value in metrics.items() if not name.startswith(TIME_AND_MEMORY)}, weights


def norm(weights: Mapping[str, torch.Tensor], less: Mapping[str, torch.Tensor] | None = None) -> float:
    """The length of all weights as one vector, or of a difference."""
    vectors = [weights[name].double() - (0 if less is None else less[name].double()) for name in weights]
    return float(torch.stack([vector.norm() for vector in vectors]).norm())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_does_not_depend_on_the_size_of_micro_batches(tmp_path: Path, variant: str) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    words = (*VARIANTS[variant], f"reward.custom_reward_function.path={reward}")
    (metrics, weights), (others, other_weights) = (one_step(tmp_path / str(size), size, *words) for size in (8192, 720))
    assert metrics["actor/grad_norm"] > 0
    learnt_from = 16 * (1 - metrics["training/groups_without_signal"])
    assert metrics["global_seqlen/mean"] * learnt_from > 720
    assert others == pytest.approx(metrics, rel=1e-5, abs=1e-7)
    before = load_file(resolve_model_path("nano").path / "model.safetensors")
    difference, learnt = norm(weights, other_weights), norm(weights, before)
    assert difference <= 1e-5 * norm(weights)
    assert difference <= 1e-3 * learnt
