"""Advantages of a row that are scaled by statistics of the whole batch, which they must see at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentverl.algorithms.groups import Groups, Index, Singleton, relative_to_group
from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.outcomes import outcome_scores, spread, whitened
from agentverl.errors import BadInputError


@torch.no_grad()
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    f_norm: float = 1.0,
    alpha: float = 1.0,
    config: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GPG: A = alpha * (R - mean) / f_norm, alpha = B / number of rows with R != 0 (Chu et al. 2025, arXiv:2504.02546).

    alpha counts the rows of the whole batch, so the estimator must see all of it at once. Without any R != 0 it is B.

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row.
        epsilon: unused, as are `alpha`, which is always computed, and `config`; verl's callers pass them.
        singleton: a group of one gets no advantage with "zero", alpha * R / f_norm with "raw" as in verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    share = len(scores) / torch.count_nonzero(scores).clamp(min=1)
    relative = share * relative_to_group(scores, groups, epsilon, normalise=False, singleton=singleton) / f_norm
    advantages = spread(relative, response_mask, token_level_rewards)
    return advantages, advantages


@torch.no_grad()
def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ with a baseline: R - mean of the group, whitened over all tokens of the batch (arXiv:2501.03262).

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row.
        epsilon: unused, as is `config`; verl's callers pass them.
        singleton: with "zero" a group of one is left out of the whitening and gets no advantage; with "raw" R takes
            part in it, as in verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    relative = relative_to_group(scores, groups, epsilon, normalise=False, singleton=singleton)
    advantages = spread_whitened(relative, groups, response_mask, token_level_rewards, singleton)
    return advantages, advantages


@torch.no_grad()
def compute_gdpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    batch: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GDPO: GRPO of each component of the reward by itself, their weighted sum whitened (arXiv:2601.05242).

    With A_k the advantages of `compute_grpo_outcome_advantage` for component k, and w_k its weight:
    A = whiten(sum(w_k A_k)) over all tokens of the batch, so that no component drowns another.

    Args:
        token_level_rewards: (B, T), the only component where `config` or `non_tensor_batch` is not given.
        response_mask: (B, T).
        index: the group of each row.
        config: `gdpo_reward_keys`, the names of the components, and `gdpo_reward_weights` (None or empty: 1 each).
        non_tensor_batch: (B) scores of each component by name. A row without one (None or NaN) takes no part in that
            component: it gets no advantage from it and counts in no mean.
        batch: unused; verl's callers pass it.
        singleton: with "zero" a group of one is left out of the whitening and gets no advantage; with "raw" its scores
            take part in it, as in verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: no component is named, one is not in the batch, weights that do not fit, an index that does not
            fit the rows, or an unknown `singleton`.
    """
    if config is None or non_tensor_batch is None:
        components, weights = [outcome_scores(token_level_rewards, response_mask)], [1.0]
    else:
        components, weights = _components(config, non_tensor_batch, token_level_rewards)
    groups = Groups.of(index, token_level_rewards)
    total = torch.zeros_like(components[0])
    for scores, weight in zip(components, weights, strict=True):
        total += weight * _relative_where_scored(scores, groups, epsilon, norm_adv_by_std_in_grpo, singleton)
    advantages = spread_whitened(total, groups, response_mask, token_level_rewards, singleton)
    return advantages, advantages


def _components(config: Any, columns: Mapping[str, Any], like: Tensor) -> tuple[list[Tensor], list[float]]:
    keys = list(setting(config, "gdpo_reward_keys", None) or ())
    if not keys:
        raise BadInputError("gdpo needs algorithm.gdpo_reward_keys, the components of the reward, such as [acc,format]")
    missing = [key for key in keys if key not in columns]
    if missing:
        raise BadInputError(
            f"gdpo: no reward component {', '.join(map(repr, missing))} in the batch, which has {', '.join(columns)}"
        )
    weights = [float(weight) for weight in setting(config, "gdpo_reward_weights", None) or [1.0] * len(keys)]
    if len(weights) != len(keys):
        raise BadInputError(f"gdpo_reward_weights has {len(weights)} entries for {len(keys)} gdpo_reward_keys")
    return [torch.as_tensor(np.asarray(columns[key], np.float64), device=like.device) for key in keys], weights


def _relative_where_scored(
    scores: Tensor, groups: Groups, epsilon: float, normalise: bool, singleton: Singleton
) -> Tensor:
    scored = ~scores.isnan()
    if bool(scored.all()):
        return relative_to_group(scores, groups, epsilon, normalise, singleton)
    some = Groups.of(groups.number[scored], scores[scored])
    relative = relative_to_group(scores[scored], some, epsilon, normalise, singleton)
    return torch.zeros_like(scores).masked_scatter_(scored, relative)


def spread_whitened(
    relative: Tensor, groups: Groups, response_mask: Tensor, like: Tensor, singleton: Singleton
) -> Tensor:
    """(B, T): advantages a row (B), whitened over the batch's tokens and spread; groups of one as `singleton` says."""
    tokens = response_mask.sum(dim=-1).double()
    if singleton == "zero":
        tokens = torch.where(groups.alone, 0.0, tokens)
        return spread(torch.where(groups.alone, 0.0, whitened(relative, tokens)), response_mask, like)
    return spread(whitened(relative, tokens), response_mask, like)
