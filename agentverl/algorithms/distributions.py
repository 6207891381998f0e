"""Log-probabilities, entropies and sums of squares of the distributions that logits describe."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.aggregation import agg_loss


def logprobs_from_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """log_softmax(logits)[labels]: (..., V) and (...) to (...)."""
    chosen = logits.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(logits, dim=-1)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """-sum(p log p): (..., V) to (...), in nats; entries of -inf have no share."""
    # A product of probability 0 with -inf would be NaN, so the lowest finite number stands in.
    logits = logits.clamp(min=torch.finfo(logits.dtype).min)
    return torch.logsumexp(logits, dim=-1) - (torch.softmax(logits, dim=-1) * logits).sum(dim=-1)


def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:
    """`entropy_from_logits` of (N, V), `chunk_size` rows at a time in float32, to keep memory low."""
    return torch.cat([entropy_from_logits(chunk.float()) for chunk in torch.split(logits, chunk_size)])


def calculate_sum_pi_squared_from_logits(logits: Tensor) -> Tensor:
    """sum(p^2): (..., V) to (...)."""
    return torch.exp(torch.logsumexp(2 * logits, dim=-1) - 2 * torch.logsumexp(logits, dim=-1))


def compute_entropy_loss(
    logits: Tensor, response_mask: Tensor, loss_agg_mode: str = "token-mean", **global_batch_info: Any
) -> Tensor:
    """The entropy of the unmasked tokens' distributions (B, T, V) as one number; see `agg_loss`."""
    kept = torch.where((response_mask != 0).unsqueeze(-1), logits, torch.zeros((), dtype=logits.dtype))
    return agg_loss(entropy_from_logits(kept), response_mask, loss_agg_mode, **global_batch_info)
