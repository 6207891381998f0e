"""The KL penalty in the reward, and what its controller gets to know."""

import numpy as np
import pytest
import torch

from agentverl.algorithms.kl import AdaptiveKLController, FixedKLController
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.trainer.penalised_rewards import assign_rewards

PENALISED = AlgorithmSettings(use_kl_in_reward=True)


def batch(lengths: list[int], trajectories: list[str]) -> DataProto:
    """Seven tokens in sequences; the policy is 0.1 to 0.7 above its reference, the third token is not its own."""
    columns = {
        "token_level_scores": torch.tensor([0.0, 0, 0, 0, 1, 0, 1]),
        "response_mask": torch.tensor([1, 1, 0, 1, 1, 1, 1]),
        "old_log_probs": torch.arange(1, 8) / 10 - 1,
        "ref_log_prob": torch.full((7,), -1.0),
    }
    order = [trajectories[:row].count(name) for row, name in enumerate(trajectories)]
    fields = {"trajectory_id": trajectories, "role": ["main"] * len(lengths), "sequence_index": order}
    return DataProto(
        Columns({name: Ragged.from_lengths(values, lengths) for name, values in columns.items()}),
        {name: np.array(values, dtype=object) for name, values in fields.items()},
    )


def test_without_the_penalty_rewards_are_the_scores() -> None:
    data, controller = batch([5, 2], ["a", "b"]), AdaptiveKLController(0.1, 0.1, 10)
    assert assign_rewards(data, AlgorithmSettings(), controller) == {}
    scores, rewards = (data.batch.ragged(name).values for name in ("token_level_scores", "token_level_rewards"))
    assert torch.equal(scores, rewards)
    assert scores is not rewards
    assert controller.value == 0.1


def test_each_token_of_the_policy_pays_its_kl() -> None:
    data = batch([5, 2], ["a", "b"])
    metrics = assign_rewards(data, PENALISED, FixedKLController(0.1))
    expected = [-0.01, -0.02, 0, -0.04, 0.95, -0.06, 0.93]
    assert data.batch.ragged("token_level_rewards").values.tolist() == pytest.approx(expected)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx((0.3 + 0.65) / 2)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.1


def test_splitting_a_trajectory_changes_neither_rewards_nor_the_coefficient() -> None:
    found = []
    for data in (batch([5, 2], ["a", "b"]), batch([2, 3, 2], ["a", "a", "b"])):
        controller = AdaptiveKLController(0.1, 0.1, 10)
        metrics = assign_rewards(data, PENALISED, controller)
        found.append((data.batch.ragged("token_level_rewards").values.tolist(), metrics, controller.value))
    assert found[0] == found[1]
    assert found[0][2] == pytest.approx(0.1 * (1 + 0.2 * 2 / 10))
