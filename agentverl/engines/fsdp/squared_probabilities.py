"""Sums of squared probabilities from hidden states, without ever holding all logits."""

import torch

from agentverl.engines.fsdp.token_log_probs import chunk_log_softmax, chunk_tokens


def sum_pi_squared(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: torch.Tensor
) -> torch.Tensor:
    """(N) float32, without gradient: the sum of p^2 over the vocabulary, p = softmax(logits / temperature).

    Args:
        hidden: (N, H) final hidden states.
        weight, bias: (V, H) and (V,) of the output embedding.
        temperature: (N,) float32, positive.
    """
    sums = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
    step = chunk_tokens(weight.shape[0])
    with torch.no_grad():
        for start in range(0, hidden.shape[0], step):
            rows = slice(start, start + step)
            log_softmax, _ = chunk_log_softmax(hidden[rows], weight, bias, temperature[rows])
            sums[rows] = log_softmax.mul_(2).exp_().sum(1)
    return sums
