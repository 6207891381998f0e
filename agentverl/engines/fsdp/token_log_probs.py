"""Log-probabilities and entropies of tokens from hidden states, without ever holding all logits."""

from typing import Any

import torch

CHUNK_BYTES = 8 * 2**20
"""Float32 logits worked on at once: small enough for a cache, and for the allocator to hand the block out again."""
MIN_CHUNK_TOKENS = 256
"""Fewer tokens would read the output embedding too often."""
MIN_BLOCK_WORDS = 256
"""Fewer words of the vocabulary would read the hidden states too often."""


def token_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    temperature: torch.Tensor,
    *,
    with_entropy: bool = False,
    kept_bytes: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log_softmax(logits / temperature) at the labels and the entropy of the same distribution, in float32.

    Args:
        hidden: (N, H) final hidden states.
        weight, bias: (V, H) and (V,) of the output embedding.
        labels: (N,) token ids.
        temperature: (N,) float32, positive.
        with_entropy: whether to compute the entropy; zeros else.
        kept_bytes: how much may be kept for the backward pass; beyond that, logits are computed again.

    Returns:
        log-probabilities (N,) and entropies (N,), both with gradients to hidden, weight and bias.
    """
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    options = _Options(with_entropy, kept_bytes if needs_gradient else 0)
    function: Any = _TokenLogProbs
    log_probs, entropy = function.apply(hidden, weight, bias, labels, temperature, options)
    return log_probs, entropy


def chunk_tokens(vocabulary: int) -> int:
    """Tokens worked on at once for a vocabulary of that size."""
    # A thread that computes alone works beside others, which hold as much.
    fewest = MIN_CHUNK_TOKENS if torch.get_num_threads() > 1 else MIN_CHUNK_TOKENS // 2
    return max(fewest, CHUNK_BYTES // (4 * vocabulary))


class _Options:
    def __init__(self, with_entropy: bool, kept_bytes: int) -> None:
        self.with_entropy, self.kept_bytes = with_entropy, kept_bytes


def chunk_log_softmax(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """log_softmax(logits / temperature), (n, V) float32, and the largest logits (n).

    The largest logit is taken off before the division, whose rounding is then the smaller the likelier a token is.
    """
    logits = torch.nn.functional.linear(hidden, weight, bias).float()
    largest = logits.amax(-1)
    logits.sub_(largest[:, None]).div_(temperature[:, None])
    return torch.log_softmax(logits, -1), largest


class _TokenLogProbs(torch.autograd.Function):
    """Forward in chunks of tokens, backward in blocks of the vocabulary, where each gradient is one product."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        temperature: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, vocabulary = hidden.shape[0], weight.shape[0]
        step = chunk_tokens(vocabulary)
        keep = count * vocabulary * 4 <= options.kept_bytes
        log_probs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropy, normalizers = torch.zeros_like(log_probs), torch.empty_like(log_probs)
        kept = log_probs.new_empty(count, vocabulary) if keep else None
        for start in range(0, count, step):
            rows = slice(start, start + step)
            log_softmax, largest = chunk_log_softmax(hidden[rows], weight, bias, temperature[rows])
            log_probs[rows] = log_softmax.gather(1, labels[rows, None]).squeeze(1)
            if options.with_entropy:
                entropy[rows] = -(log_softmax.exp() * log_softmax).sum(1)
            if kept is not None:
                kept[rows] = log_softmax
            else:
                normalizers[rows] = largest / temperature[rows] - log_softmax.amax(1)
        ctx.save_for_backward(hidden, weight, bias, labels, temperature, entropy, normalizers, kept)
        ctx.with_entropy = options.with_entropy
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, labels, temperature, entropy, normalizers, kept = ctx.saved_tensors
        slope, entropy_slope = ((gradient / temperature)[:, None] for gradient in gradients)
        slopes = slope, entropy_slope if ctx.with_entropy else None
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        grad_weight, grad_bias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
        step = max(MIN_BLOCK_WORDS, CHUNK_BYTES // (4 * max(1, len(hidden))))
        for start in range(0, len(weight), step):
            words = slice(start, start + step)
            if kept is None:
                logits = torch.nn.functional.linear(hidden, weight[words], None if bias is None else bias[words])
                log_softmax = logits.float().div_(temperature[:, None]).sub_(normalizers[:, None])
            else:
                log_softmax = kept[:, words]
            grad_logits = _grad_logits(log_softmax, labels - start, entropy[:, None], slopes).to(hidden.dtype)
            grad_hidden.add_(grad_logits @ weight[words])
            torch.mm(grad_logits.T, hidden, out=grad_weight[words])
            if grad_bias is not None:
                grad_bias[words] = grad_logits.sum(0, dtype=torch.float32)
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None


def _grad_logits(
    log_softmax: torch.Tensor,
    labels: torch.Tensor,
    entropy: torch.Tensor,
    slopes: tuple[torch.Tensor, torch.Tensor | None],
) -> torch.Tensor:
    """The gradient of logits / temperature of v words (n, v), from the slopes (n, 1) of log-probability and entropy.

    Overwrites `log_softmax`; `labels` (n) count from the first of the words and may lie outside.

    With p the distribution, y the label and H the entropy: d log p(y) / dz = onehot(y) - p; dH / dz = -p (log p + H).
    """
    slope, entropy_slope = slopes
    if entropy_slope is None:
        gradient = log_softmax.exp_().mul_(-slope)
    else:
        gradient = log_softmax.add(entropy).mul_(entropy_slope).add_(slope).mul_(log_softmax.exp()).neg_()
    last = gradient.shape[1] - 1
    inside = (labels >= 0) & (labels <= last)
    return gradient.scatter_add_(1, labels.clamp(0, last)[:, None], slope * inside[:, None])
