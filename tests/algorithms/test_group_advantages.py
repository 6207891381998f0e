"""Group-relative advantages count trajectories, whatever the order of rows and the split into sequences."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms.estimation import estimate_advantages
from agentverl.algorithms.group_advantages import compute_grpo_outcome_advantage
from agentverl.errors import BadInputError

seeds = st.integers(0, 2**32 - 1)


def grpo(rewards: Tensor, mask: Tensor, index: Any, **options: Any) -> Tensor:
    advantages, returns = compute_grpo_outcome_advantage(rewards, mask, index, **options)
    torch.testing.assert_close(advantages, returns)
    return advantages


def random_batch(random: np.random.Generator) -> tuple[Tensor, Tensor, list[tuple[str, str]]]:
    rows, width = 6, 4
    mask = torch.from_numpy((random.random((rows, width)) < 0.7).astype(np.int64))
    rewards = torch.from_numpy(random.normal(size=(rows, width)).astype(np.float32))
    return rewards, mask, [(f"uid{random.integers(3)}", "main") for _ in range(rows)]


def test_worked_numbers() -> None:
    rewards, mask = torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.ones(4, 1)
    index = np.array(["a"] * 4)
    assert grpo(rewards, mask, index).flatten().tolist() == pytest.approx(
        [-0.8660239, 0.8660239, 0.8660239, -0.8660239]
    )
    plain = grpo(rewards, mask, index, norm_adv_by_std_in_grpo=False)
    assert plain.flatten().tolist() == pytest.approx([-0.5, 0.5, 0.5, -0.5])


@given(seeds)
def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(seed: int) -> None:
    random = np.random.default_rng(seed)
    rewards, mask, index = random_batch(random)
    advantages = grpo(rewards, mask, index)
    order = random.permutation(len(rewards))
    torch.testing.assert_close(grpo(rewards[order], mask[order], [index[row] for row in order]), advantages[order])
    numbers = torch.tensor([int(uid[3:]) for uid, _ in index])
    torch.testing.assert_close(grpo(rewards, mask, numbers), advantages)
    wide = grpo(torch.nn.functional.pad(rewards, (0, 2)), torch.nn.functional.pad(mask, (0, 2)), index)
    torch.testing.assert_close(wide[:, : rewards.shape[1]], advantages)


def test_a_group_of_one_gets_no_advantage_or_the_raw_score() -> None:
    rewards, mask = torch.tensor([[2.0], [1.0], [0.0]]), torch.ones(3, 1)
    index = ["solo", "pair", "pair"]
    assert grpo(rewards, mask, index)[0] == 0
    assert grpo(rewards, mask, index, singleton="raw")[0] == pytest.approx(2 / (1 + 1e-6))
    assert grpo(rewards, mask, index, singleton="raw", norm_adv_by_std_in_grpo=False)[0] == 2
    with pytest.raises(BadInputError, match="'zero' or 'raw'"):
        grpo(rewards, mask, index, singleton="one")


def test_equal_rewards_give_no_advantage_whatever_their_rounding() -> None:
    rewards = torch.tensor([[0.1, 0.2], [0.2, 0.1], [0.3, 0.0]])
    assert grpo(rewards, torch.ones(3, 2), ["a"] * 3).abs().max() < 0.1
    assert grpo(torch.full((3, 1), 0.1), torch.ones(3, 1), ["a"] * 3).abs().max() < 1e-6


def test_rewards_under_the_mask_count_where_they_are_finite() -> None:
    mask = torch.tensor([[1, 0], [1, 0]])
    finite = grpo(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), mask, ["a", "a"], norm_adv_by_std_in_grpo=False)
    assert finite.tolist() == [[1.5, 0], [-1.5, 0]]
    broken = grpo(
        torch.tensor([[1.0, float("nan")], [0.0, float("inf")]]), mask, ["a", "a"], norm_adv_by_std_in_grpo=False
    )
    assert broken.tolist() == [[0.5, 0], [-0.5, 0]]


def test_an_empty_batch_stays_empty() -> None:
    assert grpo(torch.zeros(0, 3), torch.zeros(0, 3), []).shape == (0, 3)


def test_an_estimator_is_given_what_it_asks_for() -> None:
    ones = torch.ones(2, 1)
    inputs = {"token_level_rewards": ones, "response_mask": ones, "index": ["a", "a"], "gamma": 1.0}
    advantages, _ = estimate_advantages("grpo", inputs)
    assert advantages.tolist() == [[0], [0]]
    with pytest.raises(BadInputError, match="'grpo' needs index"):
        estimate_advantages("grpo", {"token_level_rewards": ones, "response_mask": ones})
    with pytest.raises(BadInputError, match="1 keys for 2 rows"):
        estimate_advantages("grpo", inputs | {"index": ["a"]})
