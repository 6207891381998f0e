"""Advantages of a batch: what an estimator may ask for by the names of its arguments, and how it gets it."""

import inspect
from typing import Any

import numpy as np
import torch

from agentverl.algorithms.estimation import estimate_advantages
from agentverl.algorithms.registry import get_adv_estimator_fn
from agentverl.protocol.data_proto import DataProto
from agentverl.rewards.base import numbers
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.trainer.joining import JoinedTrajectories

_TOKEN_COLUMNS = ("values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
"""Columns of a batch that are handed on where they are there, (U, T)."""


def asked_for(adv_estimator: str) -> frozenset[str]:
    """The names of an estimator's arguments."""
    return frozenset(inspect.signature(get_adv_estimator_fn(adv_estimator)).parameters)


def assign_advantages(batch: DataProto, groups: list[str], algorithm: AlgorithmSettings) -> None:
    """Add `advantages` and `returns` to the batch.

    The estimator sees whole trajectories: see `JoinedTrajectories`.

    Raises:
        BadInputError: the estimator asks for what this run does not have.
    """
    joined = JoinedTrajectories(batch)
    inputs = _inputs(batch, joined, groups, algorithm)
    advantages, returns = estimate_advantages(algorithm.adv_estimator, inputs)
    batch.batch["advantages"], batch.batch["returns"] = joined.split(advantages), joined.split(returns)


def _inputs(
    batch: DataProto, joined: JoinedTrajectories, groups: list[str], algorithm: AlgorithmSettings
) -> dict[str, Any]:
    """All that a batch offers to an estimator, for `U` trajectories in their roles."""
    inputs: dict[str, Any] = {
        "token_level_rewards": joined.column("token_level_rewards"),
        "response_mask": joined.column("response_mask"),
        "index": np.array(joined.field(groups), dtype=object),
        "gamma": algorithm.gamma,
        "lam": algorithm.lam,
        "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo,
        "step_advantage_weight": algorithm.step_advantage_weight,
        "config": algorithm,
    }
    inputs |= {name: joined.column(name) for name in _TOKEN_COLUMNS if name in batch.batch}
    fields = batch.non_tensor_batch
    if "turn_index" in batch.batch:
        inputs |= {"turn_index": joined.turns(), "state_keys": joined.of_each_turn("state_keys")}
    if "reward_baselines" in fields:
        inputs["reward_baselines"] = torch.tensor(joined.field(fields["reward_baselines"]), dtype=torch.float32)
    if "reward_components" in fields:
        rewards = [
            {**components, "score": score}
            for components, score in zip(fields["reward_components"], fields["score"], strict=True)
        ]
        inputs["non_tensor_batch"] = _components(joined.field(rewards))
    return inputs


def _components(rewards: list[dict[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """(U) each: the components of the reward that are numbers, by name; NaN where a trajectory has none."""
    listed = [numbers(components) for components in rewards]
    names = {name: None for found in listed for name in found}
    return {name: np.array([found.get(name, np.nan) for found in listed]) for name in names}
