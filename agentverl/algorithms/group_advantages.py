"""Advantages of a sample relative to the other samples of its prompt."""

from typing import Any, Literal

import torch
from torch import Tensor

from agentverl.algorithms.groups import Index, group_statistics
from agentverl.errors import BadInputError

Singleton = Literal["zero", "raw"]


def outcome_scores(token_level_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """(B) sum of a row's rewards over all positions; those under the mask count where they are finite."""
    scores = token_level_rewards.sum(dim=-1)
    if bool(scores.isfinite().all()):
        return scores
    kept = (response_mask != 0) | token_level_rewards.isfinite()
    return torch.where(kept, token_level_rewards, 0).sum(dim=-1)


def spread(row_advantages: Tensor, response_mask: Tensor, like: Tensor) -> Tensor:
    """(B, T): each row's advantage (B) on its unmasked positions, 0 elsewhere."""
    return row_advantages.to(like.dtype)[:, None] * response_mask.to(like.dtype)


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

    R is the sum of a row's rewards; a row is a whole trajectory. The deviation is unbiased. Without
    `norm_adv_by_std_in_grpo` A = R - mean (Dr.GRPO, arXiv:2503.20783).

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row, (uid, role).
        config: unused; verl's callers pass it.
        singleton: a group of one has no baseline: "zero" gives it no advantage, "raw" divides R by 1 + epsilon as verl.

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    if singleton not in ("zero", "raw"):
        raise BadInputError(f"singleton must be 'zero' or 'raw', got {singleton!r}")
    scores = outcome_scores(token_level_rewards, response_mask).double()
    size, mean, deviation = group_statistics(scores, index)
    alone = size < 2
    relative = scores - torch.where(alone, 0.0, mean)
    if norm_adv_by_std_in_grpo:
        relative = relative / (torch.where(alone, 1.0, deviation) + epsilon)
    if singleton == "zero":
        relative = torch.where(alone, 0.0, relative)
    advantages = spread(relative, response_mask, token_level_rewards)
    return advantages, advantages
