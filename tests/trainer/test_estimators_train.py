"""Every advantage estimator trains the nano policy for three real steps, from the command line."""

import json
import math
from pathlib import Path

import pytest
import torch

from agentverl.algorithms.registry import advantage_estimators
from tests.engines.saved import saved_tensors
from tests.trainer.command import Command

OF_ITS_OWN = {
    "gae": ("algorithm.lam=0.95", "critic.optim.lr=1e-3"),
    "turn_gae": ("algorithm.gamma=0.99", "critic.optim.lr=1e-3"),
    "gdpo": ("algorithm.gdpo_reward_keys=[score,acc]", "algorithm.gdpo_reward_weights=[1,0.5]"),
    "gigpo": ("algorithm.gamma=0.95", "algorithm.step_advantage_weight=0.5"),
    "reinforce_plus_plus": ("algorithm.gamma=0.99",),
}
"""Keys that only some estimators read."""
WORDS = (
    "data.train_size=12",
    "data.train_batch_size=4",
    "actor.ppo_mini_batch_size=4",
    "rollout.n=4",
    "data.max_response_length=96",
    "trainer.total_training_steps=3",
    "trainer.deterministic=true",
)


def steps(run: Path) -> list[dict[str, float]]:
    """The metrics of each step."""
    return [json.loads(line)["data"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.integration
@pytest.mark.parametrize("estimator", advantage_estimators.names())
def test_an_estimator_trains_three_steps(command: Command, estimator: str) -> None:
    ended = command.train(*WORDS, f"algorithm.adv_estimator={estimator}", *OF_ITS_OWN.get(estimator, ()))
    assert ended.code == 0, ended.printed
    logged = steps(ended.run)
    assert len(logged) == 3
    assert all(math.isfinite(value) for step in logged for value in step.values())
    assert any(step["critic/advantages/max"] > step["critic/advantages/min"] for step in logged)
    assert any(step["actor/grad_norm"] > 0 for step in logged)
    assert ("critic/vf_loss" in logged[0]) == ("gae" in estimator)


@pytest.mark.integration
def test_filters_masks_and_draws_work_together(command: Command) -> None:
    words = (
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=acc",
        "algorithm.use_pf_ppo=true",
        "algorithm.pf_ppo.reweight_method=max_random",
        "algorithm.void_turns=mask_turn",
        "rollout.on_end.mask_truncated=true",
        "actor.calculate_entropy=true",
    )
    ended = command.train(*WORDS, *words)
    assert ended.code == 0, ended.printed
    for step in steps(ended.run):
        assert step["training/groups_without_signal"] == 0
        assert step["training/filter_groups/generated_batches"] >= 1
        assert step["actor/grad_norm"] > 0
        assert {"actor/entropy/call_syntax", "actor/entropy/arguments", "actor/entropy/answer"} <= step.keys()


@pytest.mark.integration
def test_a_critic_is_warmed_up_before_the_actor_learns(command: Command) -> None:
    words = ("algorithm.adv_estimator=gae", "trainer.critic_warmup=2", "trainer.save_freq=1", "critic.optim.lr=1e-3")
    ended = command.train(*WORDS, *words)
    assert ended.code == 0, ended.printed
    assert [("actor/loss" in step, "critic/vf_loss" in step) for step in steps(ended.run)] == [
        (False, True),
        (False, True),
        (True, True),
    ]
    weights = {
        (role, step): saved_tensors(ended.run / "checkpoints" / f"global_step_{step}" / role, "model/")
        for role in ("actor", "critic")
        for step in (1, 2, 3)
    }
    for role, first, second, equal in (
        ("actor", 1, 2, True),
        ("actor", 2, 3, False),
        ("critic", 1, 2, False),
        ("critic", 2, 3, False),
    ):
        pairs = [(weights[role, first][name], weights[role, second][name]) for name in weights[role, first]]
        assert all(torch.equal(*pair) for pair in pairs) == equal
