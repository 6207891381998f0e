"""Estimators and losses are found by name, and names belong to one function."""

from enum import Enum
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

import agentverl.algorithms
from agentverl.algorithms.estimation import estimate_advantages
from agentverl.algorithms.registry import (
    Registry,
    advantage_estimators,
    get_adv_estimator_fn,
    get_policy_loss_fn,
    policy_losses,
    register_adv_est,
)
from agentverl.errors import BadInputError
from agentverl.settings.known_names import ESTIMATORS, POLICY_LOSSES, WITH_VALUES, WITHOUT_GROUP


class Estimator(Enum):
    """As a user may name estimators."""

    GRPO = "grpo"


def test_all_public_names_exist() -> None:
    for name in dir(agentverl.algorithms):
        assert callable(getattr(agentverl.algorithms, name)), name
    missing = "compute_nothing"
    with pytest.raises(AttributeError, match=missing):
        getattr(agentverl.algorithms, missing)


def test_built_in_names_are_found() -> None:
    assert get_adv_estimator_fn("grpo") is agentverl.algorithms.compute_grpo_outcome_advantage
    assert get_policy_loss_fn("vanilla") is agentverl.algorithms.compute_policy_loss_vanilla
    assert get_adv_estimator_fn(Estimator.GRPO) is get_adv_estimator_fn("grpo")
    assert policy_losses.names() == sorted(POLICY_LOSSES)
    assert advantage_estimators.names() == sorted(ESTIMATORS)


def test_settings_know_what_estimators_ask_for() -> None:
    asked = {name: signature(get_adv_estimator_fn(name)).parameters for name in ESTIMATORS}
    assert {name for name, parameters in asked.items() if "values" in parameters} == WITH_VALUES
    assert {name for name, parameters in asked.items() if "index" not in parameters} == WITHOUT_GROUP


def test_a_name_belongs_to_one_function() -> None:
    registry = Registry("policy loss", {"vanilla": "policy_losses.clipped:compute_policy_loss_vanilla"})

    def one() -> int:
        return 1

    def other() -> int:
        return 2

    registry.register("mine")(one)
    registry.register("mine")(one)
    assert registry.get("mine") is one
    for name in ("mine", "vanilla"):
        with pytest.raises(ValueError, match=f"{name!r} is already registered"):
            registry.register(name)(other)


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(BadInputError, match="Unknown policy loss 'vanila'; did you mean 'vanilla'"):
        get_policy_loss_fn("vanila")


def test_a_file_may_hold_an_estimator(tmp_path: Path) -> None:
    code = "def double(token_level_rewards, response_mask): return token_level_rewards * 2, 0"
    (tmp_path / "mine.py").write_text(code)
    name = f"{tmp_path / 'mine.py'}:double"
    assert get_adv_estimator_fn(name).__name__ == "double"
    inputs = {"token_level_rewards": torch.ones(1, 2), "response_mask": torch.ones(1, 2), "index": ["a"]}
    with pytest.raises(BadInputError, match=r"must return advantages and returns of shape \(1, 2\)"):
        estimate_advantages(name, inputs)


def test_a_registered_estimator_gets_only_what_it_asks_for() -> None:
    @register_adv_est("rewards_as_they_are")
    def rewards_as_they_are(token_level_rewards: Any, config: Any = None) -> Any:
        return token_level_rewards, token_level_rewards

    inputs = {"token_level_rewards": torch.ones(1, 2), "response_mask": torch.ones(1, 2), "index": ["a"]}
    advantages, _ = estimate_advantages("rewards_as_they_are", inputs)
    assert advantages.tolist() == [[1, 1]]
