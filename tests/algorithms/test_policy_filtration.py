"""Trajectories are drawn by their scores, and groups that differ by rounding only have nothing to teach."""

import pytest
import torch

from agentverl.algorithms.group_filters import has_signal
from agentverl.algorithms.policy_filtration import pf_ppo_draws, pf_ppo_weights

SCORES = torch.tensor([0.0, 1.0, -2.0, 0.5])


@pytest.mark.parametrize(
    ("method", "weights"),
    [("pow", [0.0, 1.0, 4.0, 0.25]), ("max_min", [0.0, 1.0, 1.0, 0.0]), ("max_random", [0.1, 0.4, 0.1, 0.1])],
)
def test_weights_of_each_method(method: str, weights: list[float]) -> None:
    torch.testing.assert_close(pf_ppo_weights(SCORES, method), torch.tensor(weights))


def test_the_power_of_the_score_is_chosen() -> None:
    torch.testing.assert_close(pf_ppo_weights(SCORES, weight_pow=1.0), SCORES.abs())


def test_drawn_are_those_with_weight_as_many_as_there_were() -> None:
    drawn = pf_ppo_draws(SCORES, "max_min", generator=torch.Generator().manual_seed(0))
    assert len(drawn) == 4
    assert set(drawn.tolist()) == {1, 2}
    assert torch.equal(drawn, pf_ppo_draws(SCORES, "max_min", generator=torch.Generator().manual_seed(0)))
    many = pf_ppo_draws(SCORES.repeat(2000), generator=torch.Generator().manual_seed(1)) % 4
    shares = torch.bincount(many, minlength=4) / len(many)
    torch.testing.assert_close(shares, torch.tensor([0.0, 1.0, 4.0, 0.25]) / 5.25, atol=0.02, rtol=0)


def test_without_a_score_that_counts_all_are_drawn_alike() -> None:
    assert len(set(pf_ppo_draws(torch.zeros(50), generator=torch.Generator().manual_seed(0)).tolist())) > 20


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported reweight_method: 'best'; it is one of pow, max_min, max_random"):
        pf_ppo_weights(SCORES, "best")
    with pytest.raises(ValueError, match="one is not finite: row 1 has nan; let the reward"):
        pf_ppo_draws(torch.tensor([1.0, float("nan")]))


def test_groups_that_differ_by_rounding_have_no_signal() -> None:
    assert not has_signal([0.1, 0.1, 0.1 + 1e-9], 1e-6)
    assert not has_signal([0.1 + 0.2, 0.3], 0.0 + 1e-12)
    assert has_signal([0.0, 1.0], 1e-6)
    assert not has_signal([1.0], 1e-6)
    assert not has_signal([], 1e-6)
