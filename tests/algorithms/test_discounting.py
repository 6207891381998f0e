"""Sums over what follows, by blocks, are those of a loop from the last token to the first."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms.discounting import discounted_sum, reverse_cumsum
from agentverl.algorithms.masked import masked_whiten
from agentverl.algorithms.return_advantages import (
    compute_gae_advantage_return,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
)

widths = st.sampled_from([0, 1, 2, 63, 64, 65, 200])
factors = st.sampled_from([0.0, 0.5, 0.99, 1.0])
seeds = st.integers(0, 2**32 - 1)


def one_by_one(values: Tensor, mask: Tensor, factor: float) -> Tensor:
    sums, following = torch.zeros_like(values), torch.zeros(len(values), dtype=values.dtype)
    for position in reversed(range(values.shape[1])):
        here = values[:, position] + factor * following
        following = torch.where(mask[:, position] != 0, here, following)
        sums[:, position] = following
    return sums


@given(seeds, widths, factors)
def test_blocks_agree_with_a_loop(seed: int, width: int, factor: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3, width, generator=generator, dtype=torch.float64)
    mask = (torch.rand(3, width, generator=generator) < 0.7).long()
    torch.testing.assert_close(discounted_sum(values, mask, factor), one_by_one(values, mask, factor))
    torch.testing.assert_close(reverse_cumsum(values), one_by_one(values, torch.ones(3, width), 1.0))


def test_more_rows_than_one_pass_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    values, mask = torch.randn(5, 70, dtype=torch.float64), torch.ones(5, 70)
    whole = discounted_sum(values, mask, 0.9)
    monkeypatch.setattr("agentverl.algorithms.discounting._ENTRIES", 140)
    torch.testing.assert_close(discounted_sum(values, mask, 0.9), whole)


def test_remax_of_more_rows_than_one_pass_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards, mask = torch.randn(5, 70, dtype=torch.float64), (torch.rand(5, 70) < 0.7).long()
    baselines = torch.rand(5, dtype=torch.float64)
    mask[3, 7] = 0
    whole = compute_remax_outcome_advantage(rewards, baselines, mask)
    monkeypatch.setattr("agentverl.algorithms.discounting._ENTRIES", 140)
    rewards[3, 7] = torch.inf  # masked: only its own rows take the long way
    torch.testing.assert_close(compute_remax_outcome_advantage(rewards, baselines, mask), whole)


def test_worked_numbers_of_gae() -> None:
    rewards = torch.tensor([[0.0, 0, 0, 0, 1]])
    values = torch.tensor([[0.1, 0.2, 0.9, 0.9, 0.5]])
    mask = torch.tensor([[1, 1, 0, 0, 1]])
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, gamma=0.9, lam=0.8)
    torch.testing.assert_close(advantages, torch.tensor([[-0.4062022, 1.1391818, 0, 0, -0.7329795]]))
    torch.testing.assert_close(returns, torch.tensor([[0.6192, 0.81, 1.4, 1.4, 1.0]]))


def test_a_reward_on_a_masked_token_is_lost_where_time_counts() -> None:
    rewards, mask = torch.tensor([[0.0, 0, 0, 0, 1]]), torch.tensor([[1, 1, 0, 1, 0]])
    _, returns = compute_gae_advantage_return(rewards, torch.zeros(1, 5), mask, gamma=0.9, lam=0.8)
    assert not returns.any()
    _, returns = compute_reinforce_plus_plus_outcome_advantage(rewards, mask, {"gamma": 0.9})
    assert not returns.any()
    _, returns = compute_reinforce_plus_plus_outcome_advantage(rewards, torch.tensor([[1, 1, 0, 0, 1]]), {"gamma": 0.9})
    torch.testing.assert_close(returns, torch.tensor([[0.81, 0.9, 0, 0, 1]]))


def test_reinforce_plus_plus_needs_a_discount() -> None:
    with pytest.raises(ValueError, match="needs a config with gamma"):
        compute_reinforce_plus_plus_outcome_advantage(torch.zeros(1, 1), torch.ones(1, 1))


def test_remax_takes_the_greedy_score_from_what_is_still_earned() -> None:
    rewards, mask = torch.tensor([[0.5, 0.0, 1.0]]), torch.ones(1, 3)
    advantages, returns = compute_remax_outcome_advantage(rewards, torch.tensor([1.0]), mask)
    assert returns.tolist() == [[1.5, 1.0, 1.0]]
    assert advantages.tolist() == [[0.5, 0.0, 0.0]]


@given(seeds)
def test_whitened_values_have_mean_zero_and_variance_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = 5 + 3 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 6, generator=generator) < 0.8
    mask[0, :2] = True
    kept = masked_whiten(values, mask)[mask]
    torch.testing.assert_close(kept.mean(), torch.zeros((), dtype=torch.float64), atol=1e-7, rtol=0)
    torch.testing.assert_close(kept.var(), torch.ones((), dtype=torch.float64), atol=1e-4, rtol=0)
