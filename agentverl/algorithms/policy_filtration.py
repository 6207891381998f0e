"""PF-PPO: learn from the trajectories whose scores can be trusted most (Zhang et al. 2024, arXiv:2409.06957)."""

import torch
from torch import Tensor

from agentverl.errors import BadInputError

METHODS = ("pow", "max_min", "max_random")


@torch.no_grad()
def pf_ppo_weights(scores: Tensor, reweight_method: str = "pow", weight_pow: float = 2.0) -> Tensor:
    """(B) how likely each trajectory is drawn, not normalised.

    - pow: |score| ** weight_pow
    - max_min: 1 for the largest and the smallest score of the batch, 0 for those between
    - max_random: 0.4 for the largest score, 0.1 for all others

    Each with 1e-8 added, so that a batch without a score that counts is drawn from evenly.

    Args:
        scores: (B), one a trajectory.

    Raises:
        BadInputError: an unknown method, or a score that is not finite.
    """
    if not bool(scores.isfinite().all()):
        row = int((~scores.isfinite()).nonzero()[0])
        raise BadInputError(
            f"PF-PPO draws trajectories by their scores, and one is not finite: row {row} has {float(scores[row])}; "
            "let the reward return finite numbers"
        )
    if reweight_method == "pow":
        weights = scores.abs() ** weight_pow
    elif reweight_method == "max_min":
        weights = ((scores == scores.max()) | (scores == scores.min())).to(scores.dtype)
    elif reweight_method == "max_random":
        weights = torch.where(scores == scores.max(), 0.4, 0.1)
    else:
        raise BadInputError(f"Unsupported reweight_method: {reweight_method!r}; it is one of {', '.join(METHODS)}")
    return weights + 1e-8


@torch.no_grad()
def pf_ppo_draws(
    scores: Tensor, reweight_method: str = "pow", weight_pow: float = 2.0, generator: torch.Generator | None = None
) -> Tensor:
    """(B) int64: the trajectories to learn from, drawn with replacement in proportion to `pf_ppo_weights`.

    Draw after advantages are known, so that groups and critic see each trajectory once, and take rows with all their
    columns: an advantage belongs to the trajectory that it was estimated for.
    """
    weights = pf_ppo_weights(scores, reweight_method, weight_pow)
    return torch.multinomial(weights, len(scores), replacement=True, generator=generator)
