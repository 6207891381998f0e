"""Advantages a turn, for agents: what one answer to one observation was worth."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.discounting import discounted_sum
from agentverl.algorithms.groups import Groups, Index, Singleton, relative_to_group
from agentverl.algorithms.outcomes import outcome_scores, whitened
from agentverl.algorithms.return_advantages import generalised_advantages
from agentverl.algorithms.turns import Turns
from agentverl.errors import BadInputError


@torch.no_grad()
def compute_turn_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float,
    lam: float,
    turn_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """GAE with a turn as one action, as in hierarchical and bi-level methods (arXiv:2402.19446, arXiv:2510.16907).

    With r_k the rewards of turn k and V_k the value at its first token, that is of the observation it answers:
    delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lam A_{k+1}, both 0 after the last turn. gamma and lam
    count turns, so long answers and observations delay nothing. A turn's tokens share its advantage and its return.

    Args:
        token_level_rewards: (B, T). A reward on a masked position, where it is finite, counts for the turn before.
        values: (B, T), at each token the value before it was chosen.
        response_mask: (B, T).
        turn_index: (B, T) int64, the turn of each unmasked token, from 0 in the order of the row; None: each run of
            unmasked tokens is a turn.

    Returns:
        advantages (B, T), A whitened over the batch's tokens, and returns (B, T), A + V before whitening at a turn's
        first token, which all of the turn's tokens regress to; both 0 on masked positions.

    Raises:
        BadInputError: a `turn_index` of another shape, or one that falls along a row.
    """
    turns = Turns.of(response_mask, turn_index)
    rewards, first_values = turns.rewards(token_level_rewards), turns.first(values)
    advantages, returns = generalised_advantages(rewards, first_values, turns.exists, float(gamma), float(lam))
    scaled = whitened(advantages.double().flatten(), turns.tokens.flatten()).view_as(advantages)
    return turns.spread(scaled, token_level_rewards), turns.spread(returns, token_level_rewards)


@torch.no_grad()
def compute_turn_grpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    gamma: float = 1.0,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    turn_index: Tensor | None = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GRPO a turn: a reward counts for the turn that earned it and those before, never after (cf. arXiv:2505.11821).

    G_k = r_k + gamma G_{k+1} over the turns of a row, and A_k = (G_k - mean) / (std + epsilon) over the k-th turns of
    the samples of a prompt; without `norm_adv_by_std_in_grpo` G_k - mean. A turn's tokens share its advantage.

    Args:
        token_level_rewards: (B, T). A reward on a masked position, where it is finite, counts for the turn before.
        response_mask: (B, T).
        index: the group of each row.
        gamma: discount a turn.
        turn_index: (B, T) int64, the turn of each unmasked token, from 0 in the order of the row; None: each run of
            unmasked tokens is a turn.
        singleton: what a turn gets that no other sample came to: "zero", nothing, or "raw", G_k / (1 + epsilon).

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index or a `turn_index` that does not fit, or an unknown `singleton`.
    """
    turns = Turns.of(response_mask, turn_index)
    group = Groups.of(index, response_mask).number
    rows, numbers = turns.exists.nonzero(as_tuple=True)
    steps = Groups.of(group[rows] * turns.tokens.shape[1] + numbers, rows)
    per_turn = _relative_returns(turns, token_level_rewards, gamma, steps, epsilon, norm_adv_by_std_in_grpo, singleton)
    advantages = turns.spread(per_turn, token_level_rewards)
    return advantages, advantages


@torch.no_grad()
def compute_gigpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    state_keys: Sequence[Sequence[Hashable]],
    gamma: float = 1.0,
    step_advantage_weight: float = 1.0,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    turn_index: Tensor | None = None,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GiGPO: groups of trajectories, and in them groups of turns from the same state (Feng et al., arXiv:2505.10978).

    A = A_trajectory + step_advantage_weight * A_turn. A_trajectory is that of GRPO. With the discounted return of turn
    k, G_k = r_k + gamma G_{k+1}, A_turn = (G_k - mean) / (std + epsilon) over all turns of the samples of a prompt that
    answer the same state; without `norm_adv_by_std_in_grpo` neither is divided. A turn in a state that no other turn
    answers gets nothing from the second. The paper discounts by 0.95.

    Args:
        token_level_rewards: (B, T). A reward on a masked position, where it is finite, counts for the turn before.
        response_mask: (B, T).
        index: the group of each row.
        state_keys: for each row, for each of its turns, a key of the state that the turn answers; None: not known.
        gamma: discount a turn.
        turn_index: (B, T) int64, the turn of each unmasked token, from 0 in the order of the row; None: each run of
            unmasked tokens is a turn.
        singleton: what a group of one trajectory gets from the first: "zero", nothing, or "raw", R / (1 + epsilon).

    Returns:
        advantages and returns (B, T), equal; 0 on masked positions.

    Raises:
        BadInputError: an index, a `turn_index` or keys that do not fit, or an unknown `singleton`.
    """
    turns = Turns.of(response_mask, turn_index)
    scores = outcome_scores(token_level_rewards, response_mask)
    groups = Groups.of(index, scores)
    trajectory = relative_to_group(scores, groups, epsilon, norm_adv_by_std_in_grpo, singleton)
    steps = _same_states(turns, groups, state_keys)
    per_turn = _relative_returns(turns, token_level_rewards, gamma, steps, epsilon, norm_adv_by_std_in_grpo)
    advantages = turns.spread(trajectory[:, None] + step_advantage_weight * per_turn, token_level_rewards)
    return advantages, advantages


def _relative_returns(
    turns: Turns,
    token_level_rewards: Tensor,
    gamma: float,
    steps: Groups,
    epsilon: float,
    normalise: bool,
    singleton: Singleton = "zero",
) -> Tensor:
    """(B, K) float64: the discounted return of each turn relative to its group of turns; 0 where there is no turn."""
    returns = discounted_sum(turns.rewards(token_level_rewards).double(), turns.exists, float(gamma))
    relative = relative_to_group(returns[turns.exists], steps, epsilon, normalise, singleton)
    return torch.zeros_like(returns).masked_scatter_(turns.exists, relative)


def _same_states(turns: Turns, groups: Groups, state_keys: Sequence[Sequence[Hashable]]) -> Groups:
    """Groups of the turns that exist, row by row: of one prompt and in one state."""
    if len(state_keys) != len(turns.number):
        raise BadInputError(f"state_keys has {len(state_keys)} rows, the batch {len(turns.number)}")
    rows, numbers = turns.exists.nonzero(as_tuple=True)
    group_of_row = groups.number.tolist()
    keys: list[Hashable] = []
    for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
        if number >= len(state_keys[row]):
            raise BadInputError(f"state_keys has {len(state_keys[row])} keys for turn {number} of row {row}")
        state = state_keys[row][number]
        keys.append(object() if state is None else (group_of_row[row], state))
    return Groups.of(keys, rows)
