"""The clipped loss at its corners: both clips, the mask, the configuration, and weights for each token."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from agentverl.algorithms.loss_config import LossConfig
from agentverl.algorithms.policy_losses.clipped import compute_policy_loss_vanilla
from agentverl.errors import BadInputError

SETTINGS = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None, "clip_ratio_c": 3.0}


def loss_of(ratio: float, advantage: float, config: Any = SETTINGS) -> tuple[float, dict[str, float]]:
    loss, metrics = compute_policy_loss_vanilla(
        torch.zeros(1, 1), torch.tensor([[ratio]]).log(), torch.tensor([[advantage]]), torch.ones(1, 1), config=config
    )
    return loss.item(), metrics


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [(1.5, 1, -1.2, "clip"), (0.5, 1, -0.5, ""), (0.5, -1, 0.8, "clip"), (1.5, -1, 1.5, ""), (5.0, -1, 3.0, "lower")],
)
def test_worked_numbers(ratio: float, advantage: float, loss: float, clipped: str) -> None:
    ours, metrics = loss_of(ratio, advantage)
    assert ours == pytest.approx(loss, rel=1e-6)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(float(clipped == "clip"))
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(float(clipped == "lower"))


def test_the_configuration_may_be_any_object() -> None:
    asymmetric = {**SETTINGS, "clip_ratio_high": 0.28}
    configs = (asymmetric, SimpleNamespace(**asymmetric))
    for config in (*configs, *(LossConfig(settings, {}) for settings in configs)):
        assert loss_of(1.5, 1, config)[0] == pytest.approx(-1.28)
        assert loss_of(0.5, -1, config)[0] == pytest.approx(0.8)
    wrapped = LossConfig(asymmetric, {"dp_size": 2})
    assert (wrapped["clip_ratio"], wrapped.get("clip_ratio_c"), wrapped.get("nothing", 1)) == (0.2, 3.0, 1)
    with pytest.raises(KeyError):
        wrapped["nothing"]
    with pytest.raises(BadInputError, match="clip_ratio_c must be greater than 1, got 1"):
        loss_of(1, 1, {**SETTINGS, "clip_ratio_c": 1})
    with pytest.raises(BadInputError, match="needs clip_ratio"):
        loss_of(1, 1, {})


def gradient_and_loss(config: Any, mask: Tensor, fill: float) -> tuple[Tensor, Tensor, dict[str, float]]:
    generator = torch.Generator().manual_seed(0)
    columns = [torch.where(mask != 0, torch.randn(mask.shape, generator=generator), fill) for _ in range(3)]
    log_prob = columns[0].requires_grad_()
    loss, metrics = compute_policy_loss_vanilla(columns[1], log_prob, columns[2], mask, config=config)
    return torch.autograd.grad(loss, log_prob)[0], loss, metrics


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_nothing_under_the_mask_reaches_loss_metrics_or_gradient(fill: float) -> None:
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]])
    clean, dirty = gradient_and_loss(SETTINGS, mask, 0.0), gradient_and_loss(SETTINGS, mask, fill)
    torch.testing.assert_close(dirty[:2], clean[:2])
    assert dirty[2] == clean[2]


def test_a_batch_without_a_token_has_loss_0_and_gradient_0() -> None:
    gradient, loss, metrics = gradient_and_loss(SETTINGS, torch.zeros(2, 3), float("nan"))
    assert (loss.item(), float(gradient.abs().sum())) == (0, 0)
    assert set(metrics.values()) == {0.0}


def test_weights_reach_the_loss_through_the_configuration() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    by_mode = gradient_and_loss(SETTINGS, mask, 0.0)
    by_weight = gradient_and_loss(LossConfig(SETTINGS, {"loss_weight": torch.full((2, 3), 1 / 5)}), mask, 0.0)
    torch.testing.assert_close(by_weight[:2], by_mode[:2])


def test_corrections_for_the_rollout_policy_multiply_the_losses() -> None:
    old, new, advantages = torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2)
    weights = torch.tensor([[0.5, float("nan")]])
    loss, _ = compute_policy_loss_vanilla(old, new, advantages, torch.tensor([[1, 0]]), "token-mean", SETTINGS, weights)
    assert loss.item() == -0.5
