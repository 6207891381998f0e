"""Numbers of each policy loss that can be followed by hand; verl's own are in the golden cases."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import agentverl.algorithms as algorithms
from agentverl.errors import BadInputError

CONFIG: dict[str, Any] = {"clip_ratio": 0.2, "clip_ratio_c": 3.0, "tau_pos": 1.0, "tau_neg": 1.05}


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient(loss: Tensor, log_prob: Tensor) -> list[list[float]]:
    gradients: list[list[float]] = torch.autograd.grad(loss, log_prob)[0].tolist()
    return gradients


def test_gspo_gives_every_token_the_geometric_mean_of_its_row() -> None:
    log_prob = rows([math.log(1.2), math.log(0.9), 0.0]).requires_grad_()
    loss, metrics = algorithms.compute_policy_loss_gspo(
        torch.zeros_like(log_prob), log_prob, torch.ones_like(log_prob), torch.ones(1, 3), "token-mean", CONFIG
    )
    assert loss.item() == pytest.approx(-1.0259856, rel=1e-6)
    assert gradient(loss, log_prob)[0] == pytest.approx([-1.0259856 / 3] * 3, rel=1e-6)
    assert metrics["actor/pg_clipfrac"] == 0


@pytest.mark.parametrize(("ratio", "advantage", "loss"), [(1.5, 1.0, -2.4898373), (1.0, -1.0, 1.9047619)])
def test_sapo_opens_its_gate_with_the_ratio(ratio: float, advantage: float, loss: float) -> None:
    value, _ = algorithms.compute_policy_loss_sapo(
        rows([0.0]), rows([math.log(ratio)]), rows([advantage]), torch.ones(1, 1), config=CONFIG
    )
    assert value.item() == pytest.approx(loss, rel=1e-6)


def test_cispo_keeps_the_gradient_of_a_clipped_token() -> None:
    log_prob = rows([math.log(1.5)]).requires_grad_()
    loss, metrics = algorithms.compute_policy_loss_cispo(
        rows([0.0]), log_prob, rows([2.0]), torch.ones(1, 1), config=CONFIG
    )
    assert gradient(loss, log_prob)[0] == pytest.approx([-2.4])
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_stops_tokens_that_went_too_far_and_lets_them_come_back(divergence: str) -> None:
    function = getattr(algorithms, f"compute_policy_loss_dppo_{divergence}")
    old = torch.log(rows([0.2, 0.2, 0.5]))
    log_prob = torch.log(rows([0.9, 0.9, 0.5])).requires_grad_()
    loss, metrics = function(old, log_prob, rows([1.0, -1.0, 1.0]), torch.ones(1, 3), "token-sum", CONFIG)
    assert gradient(loss, log_prob)[0] == pytest.approx([0.0, 3.0, -1.0])
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 3)
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(1 / 3)


def test_a_probability_rounded_to_above_1_is_near_1() -> None:
    log_prob = rows([1e-7, 1e-7]).requires_grad_()
    old = torch.log(rows([0.9999, 1.0]))
    loss, metrics = algorithms.compute_policy_loss_dppo_kl(
        old, log_prob, rows([1.0, 1.0]), torch.ones(1, 2), "token-sum", CONFIG
    )
    assert gradient(loss, log_prob)[0] == pytest.approx([-1.0, -1.0], rel=1e-3)
    assert metrics["actor/pg_clipfrac"] == 0


def test_gmpo_takes_the_mean_over_rows_with_a_token() -> None:
    log_prob = rows([0.1, -0.1], [0.4, 0.0], [9.0, 9.0])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    loss, metrics = algorithms.compute_policy_loss_geo_mean(
        torch.zeros_like(log_prob), log_prob, torch.ones_like(log_prob), mask, config=CONFIG
    )
    assert loss.item() == pytest.approx(-(1 + math.exp(0.2)) / 2, rel=1e-6)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 3)


def test_clip_cov_draws_from_its_generator() -> None:
    torch.manual_seed(1)
    log_prob, advantages = torch.randn(4, 16), torch.randn(4, 16)
    config = CONFIG | {"policy_loss": {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.0, "clip_cov_ub": 9.0}}

    def loss(seed: int) -> float:
        value, metrics = algorithms.compute_policy_loss_clip_cov(
            log_prob - 0.01,
            log_prob,
            advantages,
            torch.ones(4, 16),
            config=config,
            generator=torch.Generator().manual_seed(seed),
        )
        assert metrics["actor/pg_clipfrac"] == pytest.approx(6 / 64)
        return float(value)

    assert loss(0) == loss(0) != loss(1)


def test_kl_cov_makes_the_tokens_of_highest_covariance_pay() -> None:
    log_prob = rows([-3.0, -0.5, -1.0]).requires_grad_()
    config = CONFIG | {"policy_loss": {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.5}}
    old, advantages = log_prob.detach() + rows([0.1, 0.2, 0.3]), rows([-2.0, 1.0, 1.0])
    loss, metrics = algorithms.compute_policy_loss_kl_cov(
        old, log_prob, advantages, torch.ones(1, 3), "token-sum", config
    )
    expected = 2 * math.exp(-0.1) - math.exp(-0.2) - math.exp(-0.3) + 0.5 * 0.1
    assert loss.item() == pytest.approx(expected)
    assert metrics == {"actor/ppo_kl": pytest.approx(0.2)}


def test_dro_pulls_back_to_the_sampling_policy() -> None:
    config = CONFIG | {"policy_loss": {"dro_beta": 2.0}}
    loss, _ = algorithms.compute_policy_loss_dro(
        rows([-1.0]), rows([-0.5]), rows([3.0]), torch.ones(1, 1), config=config
    )
    assert loss.item() == pytest.approx(1.5 + 0.25)
    for beta in (None, 0.0):
        with pytest.raises(BadInputError, match=r"policy_loss.dro_beta must be a positive value"):
            algorithms.compute_policy_loss_dro(
                *[rows([0.0])] * 3, torch.ones(1, 1), config={"policy_loss": {"dro_beta": beta}}
            )


@pytest.mark.parametrize(
    ("policy_loss", "message"),
    [({}, "needs the section rollout_correction"), ({"rollout_correction": {"loss_type": "ppo"}}, "loss_type: ppo")],
)
def test_bypass_mode_needs_its_section(policy_loss: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        algorithms.compute_policy_loss_bypass_mode(
            *[rows([0.0])] * 3, torch.ones(1, 1), config=CONFIG | {"policy_loss": policy_loss}
        )
