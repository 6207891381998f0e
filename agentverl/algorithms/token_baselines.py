"""Optimal token baselines: at each token the baseline that makes the variance of the gradient least."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.discounting import summed_to_come
from agentverl.algorithms.groups import Groups, Index, Singleton, check_singleton
from agentverl.algorithms.outcomes import unmasked


@torch.no_grad()
def compute_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Optimal token baseline: A_t = G_t - B_t, B_t = sum(G_t W_t) / (sum(W_t) + epsilon) over a prompt's samples.

    G_t is the sum of unmasked rewards from t on. W_t = sum of w_j for j <= t stands for the squared norm of the
    gradient of all log-probabilities so far, w_j = 1 - 2 pi_j + sum(pi^2) being that of the logits at j, times the
    square of the importance weight where there is one. Both sums run over the samples with an unmasked token in column
    t, so observations of different lengths shift samples against each other; see
    `compute_multi_turn_optimal_token_baseline_advantage`. The baseline is verl 0.9's.

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        index: the group of each row.
        old_log_probs: (B, T), log pi of the tokens.
        sum_pi_squared: (B, T), sum over the vocabulary of pi^2.
        rollout_is_weights: (B, T), the weights that correct for the rollout policy.
        handle_zero_tail: B = 0 for the one longest sample of a group from the column on whose number is the second
            longest's count of unmasked tokens: there its only peer would be itself.
        singleton: a group of one gets no advantage with "zero", A = G with "raw" as in verl.

    Returns:
        advantages (B, T), 0 on masked positions, and returns G (B, T), on masked positions what is earned after them.

    Raises:
        BadInputError: an index that does not fit the rows, or an unknown `singleton`.
    """
    check_singleton(singleton)
    groups = Groups.of(index, token_level_rewards)
    returns = summed_to_come(token_level_rewards, response_mask)
    energies = _path_energies(response_mask, old_log_probs, sum_pi_squared, rollout_is_weights)
    baselines = _baselines(returns, energies.mul_(response_mask), groups, epsilon)
    if handle_zero_tail:
        _clear_tails(baselines, response_mask.sum(dim=-1), groups)
    advantages = _less_baseline(returns, baselines, groups, singleton)
    return advantages.mul_(response_mask), returns


@torch.no_grad()
def compute_multi_turn_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    *,
    singleton: Singleton = "zero",
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`compute_optimal_token_baseline_advantage` for several turns: t counts the unmasked tokens of a row.

    So the n-th token that the policy chose is compared with the n-th of the other samples, whatever tools wrote in
    between. Rows without an unmasked token belong to no group. Arguments, results and errors are the same; the tail
    begins after as many unmasked tokens as the second longest sample has.
    """
    check_singleton(singleton)
    positions = (response_mask != 0).flatten().nonzero().squeeze(1)
    lengths = response_mask.sum(dim=-1).long()
    returns = summed_to_come(token_level_rewards, response_mask)
    energies = _path_energies(response_mask, old_log_probs, sum_pi_squared, rollout_is_weights)
    taken = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device) < lengths[:, None]
    packed_returns, packed_energies = (
        column.new_zeros(taken.shape).masked_scatter_(taken, column.flatten().index_select(0, positions))
        for column in (returns, energies)
    )
    groups = Groups.of(index, token_level_rewards).among(lengths > 0)
    baselines = _baselines(packed_returns, packed_energies, groups, epsilon)
    if handle_zero_tail:
        _clear_tails(baselines, lengths, groups)
    packed = _less_baseline(packed_returns, baselines, groups, singleton)
    chosen = packed.flatten().index_select(0, taken.flatten().nonzero().squeeze(1))
    return torch.zeros_like(returns).flatten().index_copy_(0, positions, chosen).view_as(returns), returns


def _path_energies(mask: Tensor, old_log_probs: Tensor, squares: Tensor, weights: Tensor | None) -> Tensor:
    """(B, T): W_t, the sum of 1 - 2 pi + sum(pi^2) over the unmasked tokens up to t."""
    energies = old_log_probs.exp().mul_(-2).add_(1).add_(squares)
    if weights is not None:
        energies.mul_(weights).mul_(weights)
    return unmasked(energies, mask).cumsum_(dim=-1)


def _baselines(returns: Tensor, energies: Tensor, groups: Groups, epsilon: float) -> Tensor:
    """(B, T): sum(G W) / (sum(W) + epsilon) over each column of a row's group; overwrites W."""
    total = groups.total(energies).add_(epsilon)
    return groups.total(energies.mul_(returns)).div_(total).index_select(0, groups.number)


def _clear_tails(baselines: Tensor, lengths: Tensor, groups: Groups) -> None:
    """No baseline past the second longest row of a group, for the longest."""
    rows, longest, second = groups.best_two(lengths)
    columns = torch.arange(baselines.shape[1], device=baselines.device)
    baselines[rows] *= (columns < torch.where(longest > second, second, len(columns))[:, None]).to(baselines.dtype)


def _less_baseline(returns: Tensor, baselines: Tensor, groups: Groups, singleton: Singleton) -> Tensor:
    """(B, T): G - B, in the place of B; in a group of one 0, or G with `singleton="raw"`."""
    alone = groups.alone.nonzero().squeeze(1)
    advantages = torch.sub(returns, baselines, out=baselines)
    advantages[alone] = returns[alone] if singleton == "raw" else 0.0
    return advantages
