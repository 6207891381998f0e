"""Advantages of a sample relative to the other samples of its prompt: one number for all tokens of a row."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.groups import Groups, Index, Singleton, check_singleton, relative_to_group
from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.outcomes import outcome_scores, spread
from agentverl.errors import BadInputError


@torch.no_grad()
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GRPO: A = (R - mean) / (std + epsilon) over the samples of a prompt (Shao et al. 2024, arXiv:2402.03300).

    R is the sum of a row's rewards over all positions; a row is a whole trajectory. The deviation is unbiased. Without
    `norm_adv_by_std_in_grpo` A = R - mean (Dr.GRPO, arXiv:2503.20783).

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row, (uid, role).
        config: unused; verl's callers pass it.
        singleton: a group of one has no baseline: "zero" gives it no advantage, "raw" R / (1 + epsilon) as verl, or R
            where nothing is divided.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    relative = relative_to_group(scores, groups, epsilon, norm_adv_by_std_in_grpo, singleton)
    advantages = spread(relative, response_mask, token_level_rewards)
    return advantages, advantages


@torch.no_grad()
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Pass@k: only the best sample of a prompt gets an advantage, its lead over the second (arXiv:2503.19595).

    A = (R_max - R_second) / (std + epsilon), without `norm_adv_by_std_in_grpo` R_max - R_second; 0 for all others, and
    for all of a group whose best two are equal.

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row.
        config: where given, its `norm_adv_by_std_in_grpo` counts, as in verl.
        singleton: "zero" gives a group of one no advantage, "raw" refuses it as verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, an unknown `singleton`, or a group of one with "raw".
    """
    check_singleton(singleton)
    if config is not None:
        norm_adv_by_std_in_grpo = setting(config, "norm_adv_by_std_in_grpo", True)
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    if singleton == "raw" and bool(groups.alone.any()):
        row = int(groups.alone.nonzero()[0])
        raise BadInputError(f"Pass@k requires at least 2 samples per group. Got 1 for the group of row {row}")
    best, largest, second = groups.best_two(scores)
    lead = largest - second
    if norm_adv_by_std_in_grpo:
        lead = lead / (groups.deviation(scores)[best] + epsilon)
    relative = torch.zeros_like(scores).index_copy_(0, best, lead)
    advantages = spread(relative, response_mask, token_level_rewards)
    return advantages, advantages


@torch.no_grad()
def compute_rloo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """RLOO: A = R less the mean of the other samples = n / (n - 1) * (R - mean) (Ahmadian et al., arXiv:2402.14740).

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row, n rows each.
        epsilon: unused, as is `config`; verl's callers pass them.
        singleton: a group of one gets no advantage with "zero", R with "raw" as in verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    relative = relative_to_group(scores, groups, epsilon, normalise=False, singleton=singleton)
    # A group of one keeps what it has: nothing, or its score.
    relative = relative * (groups.size / (groups.size - 1).clamp(min=1))[groups.number]
    advantages = spread(relative, response_mask, token_level_rewards)
    return advantages, advantages


@torch.no_grad()
def compute_rloo_vectorized_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Index, *_: Any, **others: Any
) -> tuple[Tensor, Tensor]:
    """`compute_rloo_outcome_advantage`, where a group of one gets no advantage, whatever `singleton` says (as verl)."""
    check_singleton(others.pop("singleton", "zero"))
    return compute_rloo_outcome_advantage(token_level_rewards, response_mask, index, singleton="zero")


@torch.no_grad()
def compute_opo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = 1e-6,
    config: Any = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """OPO: A = R - sum(length * R) / sum(length) over the samples of a prompt (Hao et al. 2025, arXiv:2505.23585).

    The baseline of least variance where the squared gradient grows with the length, the unmasked tokens of a row; in a
    group without a token it is 0.

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row.
        epsilon: unused, as is `config`; verl's callers pass them.
        singleton: a group of one gets no advantage with "zero", R with "raw" as in verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    check_singleton(singleton)
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    lengths = response_mask.sum(dim=-1).double()
    baseline = groups.total(lengths * scores) / groups.total(lengths).clamp(min=1)
    alone = scores if singleton == "raw" else torch.zeros_like(scores)
    relative = torch.where(groups.alone, alone, scores - baseline[groups.number])
    advantages = spread(relative, response_mask, token_level_rewards)
    return advantages, advantages
