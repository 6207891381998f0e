"""Advantages from what a row earns after each token: GAE, REINFORCE++ and ReMax."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.discounting import discounted_sum, some_rows, summed_to_come
from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.masked import masked_whiten
from agentverl.algorithms.outcomes import finite_outside_mask, unmasked
from agentverl.errors import BadInputError


@torch.no_grad()
def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """(B, T) GAE before it is whitened, and returns; see `compute_gae_advantage_return`."""
    next_values = discounted_sum(values, mask, 0.0)
    deltas = rewards - values
    deltas[:, :-1].add_(next_values[:, 1:], alpha=gamma)
    advantages = discounted_sum(deltas, mask, gamma * lam)
    return advantages, advantages + finite_outside_mask(values, mask)


@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438), whitened over the batch's tokens.

    Over unmasked tokens only, from the last to the first: delta_t = r_t + gamma V_{t+1} - V_t and
    A_t = delta_t + gamma lam A_{t+1}, where t + 1 is the next unmasked token; after the last one both are 0. So tokens
    of tools and environments are neither bootstrapped from nor discounted over, and a reward on one is lost.

    Args:
        token_level_rewards: (B, T).
        values: (B, T), at each token the value before it was chosen.
        response_mask: (B, T).

    Returns:
        advantages (B, T), A whitened by `masked_whiten`, 0 on masked positions; returns (B, T), A + V before whitening,
        on masked positions the A of the next unmasked token + V, as in verl, with 0 for a V that is not finite.
    """
    advantages, returns = generalised_advantages(token_level_rewards, values, response_mask, float(gamma), float(lam))
    return masked_whiten(advantages, response_mask), returns


@torch.no_grad()
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """REINFORCE++: discounted returns, whitened over the batch's tokens (Hu et al. 2025, arXiv:2501.03262).

    G_t = r_t + gamma G_{t+1} over unmasked tokens, t + 1 being the next of them: tokens of tools and environments are
    passed over, and a reward on one is lost.

    Args:
        token_level_rewards: (B, T).
        response_mask: (B, T).
        config: `gamma`.

    Returns:
        advantages (B, T), G whitened by `masked_whiten`, and returns (B, T), G; both 0 on masked positions.

    Raises:
        BadInputError: no `config`.
    """
    if config is None:
        raise BadInputError("reinforce_plus_plus needs a config with gamma")
    gamma = float(setting(config, "gamma"))
    returns = unmasked(discounted_sum(token_level_rewards, response_mask, gamma), response_mask)
    return masked_whiten(returns, response_mask), returns


@torch.no_grad()
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor, reward_baselines: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """ReMax: what is still earned, less the score of the greedy answer to the prompt (Li et al., arXiv:2310.10505).

    G_t is the sum of the unmasked rewards from t on; A = G - baseline.

    Args:
        token_level_rewards: (B, T).
        reward_baselines: (B), the score of the greedy answer to each row's prompt.
        response_mask: (B, T).
        config: unused; verl's callers pass it.

    Returns:
        advantages and returns G (B, T). On masked positions both are what is earned after them, as in verl.
    """
    advantages, returns = (torch.empty_like(token_level_rewards) for _ in range(2))
    baselines = reward_baselines.to(returns.dtype)[:, None]
    batch = (token_level_rewards, response_mask, baselines, returns, advantages)
    for rewards, mask, baseline, to_come, out in some_rows(*batch):
        to_come.copy_(summed_to_come(rewards, mask))
        torch.addcmul(to_come, baseline, mask.to(rewards.dtype), value=-1, out=out)
    return advantages, returns
