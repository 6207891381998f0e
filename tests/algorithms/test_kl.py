"""Estimates of the KL: their values, their gradients, and what the mask keeps out."""

import pytest
import torch

from agentverl.algorithms.kl import (
    AdaptiveKLController,
    FixedKLController,
    compute_kl_loss,
    get_kl_controller,
    kl_in_reward,
    kl_penalty,
)
from agentverl.errors import BadInputError


@pytest.mark.parametrize(
    ("difference", "k3"), [(0.1, 0.0048374), (-0.1, 0.0051709), (3.0, 2.0497871), (25.0, 10.0), (-25.0, 10.0)]
)
def test_worked_numbers(difference: float, k3: float) -> None:
    log_prob, reference = torch.tensor([difference]), torch.zeros(1)
    assert float(kl_penalty(log_prob, reference, "k3")) == pytest.approx(k3, rel=1e-4)
    assert float(kl_penalty(log_prob, reference, "k1")) == pytest.approx(difference)
    assert float(kl_penalty(log_prob, reference, "k2")) == pytest.approx(difference**2 / 2)
    assert float(kl_penalty(log_prob, reference, "abs")) == pytest.approx(abs(difference))


@pytest.mark.parametrize("name", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"])
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(name: str) -> None:
    log_prob = torch.tensor([0.3, -1.2], requires_grad=True)
    reference = torch.tensor([0.1, -0.2])
    straight = kl_penalty(log_prob, reference, name + "+")
    assert straight.tolist() == kl_penalty(log_prob, reference, name).tolist()
    (gradient,) = torch.autograd.grad(straight.sum(), log_prob)
    torch.testing.assert_close(gradient, (log_prob - reference).detach())


def test_unknown_estimators_name_the_known_ones() -> None:
    with pytest.raises(NotImplementedError, match="must be one of kl, k1, abs"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "low_var")
    with pytest.raises(BadInputError, match="needs logits"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "full")


def test_the_loss_leaves_out_what_is_masked() -> None:
    log_prob = torch.tensor([[0.5, float("nan")]], requires_grad=True)
    loss = compute_kl_loss(log_prob, torch.tensor([[0.0, -float("inf")]]), torch.tensor([[1, 0]]), "k2", "token-mean")
    (gradient,) = torch.autograd.grad(loss, log_prob)
    assert loss.item() == pytest.approx(0.125)
    assert gradient.tolist() == [[0.5, 0]]


def test_the_reward_loses_the_kl_of_its_token() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0]])
    old = torch.tensor([[0.5, 0.1], [0.4, float("nan")], [float("inf"), 1.0]])
    rewards, current = kl_in_reward(scores, old, torch.zeros(3, 2), mask, kl_coef=0.1)
    torch.testing.assert_close(rewards, torch.tensor([[-0.05, 0.99], [-0.04, 0.0], [0.0, 0.0]]))
    assert current == pytest.approx((0.3 + 0.4) / 2)


def test_the_controller_follows_the_configuration() -> None:
    assert isinstance(get_kl_controller({"type": "fixed", "kl_coef": 0.1}), FixedKLController)
    adaptive = {"type": "adaptive", "kl_coef": 0.001, "horizon": 10000, "target_kl": 0.1}
    controller = get_kl_controller(adaptive)
    assert isinstance(controller, AdaptiveKLController)
    controller.update(0.2, n_steps=256)
    assert controller.value == pytest.approx(0.00100512)
    with pytest.raises(BadInputError, match="horizon must be larger than 0"):
        get_kl_controller({**adaptive, "horizon": 0})
    with pytest.raises(BadInputError, match="fixed or adaptive, got 'other'"):
        get_kl_controller({"type": "other"})
