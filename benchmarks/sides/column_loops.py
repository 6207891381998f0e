"""What estimators that recur over time are measured against: plain loops over the columns of matrices in rows."""

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Advantages before they are whitened, from one unmasked token to the next."""
    advantages = torch.empty_like(rewards)
    next_value, following = torch.zeros(len(rewards)), torch.zeros(len(rewards))
    for column in reversed(range(rewards.shape[1])):
        kept = mask[:, column]
        here = rewards[:, column] + gamma * next_value - values[:, column] + gamma * lam * following
        following = here * kept + following * (1 - kept)
        next_value = values[:, column] * kept + next_value * (1 - kept)
        advantages[:, column] = following
    return advantages


def discounted(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Discounted returns, from one unmasked token to the next."""
    returns, following = torch.empty_like(rewards), torch.zeros(len(rewards))
    for column in reversed(range(rewards.shape[1])):
        kept = mask[:, column]
        following = (rewards[:, column] + gamma * following) * kept + following * (1 - kept)
        returns[:, column] = following
    return returns


def summed(*matrices: Tensor) -> list[Tensor]:
    """Of each matrix the sums of what stands at a place and after it."""
    sums = [torch.empty_like(matrix) for matrix in matrices]
    for matrix, result in zip(matrices, sums, strict=True):
        following = torch.zeros(len(matrix))
        for column in reversed(range(matrix.shape[1])):
            following = following + matrix[:, column]
            result[:, column] = following
    return sums
