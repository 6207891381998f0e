"""One token for each row of logits, with each row's own parameters and random number.

Legend: S sampled rows, V vocabulary, W width of a block.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from agentverl.rollout.replica import SamplingParams

_BLOCK = 64
_SMALL = 1024
_LARGEST = 1 - 2**-52  # which times any sum is below that sum, also when it is rounded


@dataclass(frozen=True, slots=True)
class Bent:
    """A row that is drawn from a bent distribution, with the ids that its repetition penalty counts."""

    row: int
    params: SamplingParams
    seen: npt.NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Draw:
    """What rows are sampled with: temperatures (S; 0 is greedy), uniform numbers in [0, 1) (S), and the bent rows."""

    temperatures: torch.Tensor
    uniforms: torch.Tensor
    greedy: bool
    """Whether any row is greedy."""
    bent: list[Bent]
    tempered: bool = True
    """False only where all temperatures are 1, which need no division."""


def sample(logits: torch.Tensor, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (S) and their log_softmax(logits / temperature) (S, float32, of the undistorted distribution).

    `logits` (S, V; float32) may be overwritten. A row whose logits are NaN or infinite gets NaN as its log-probability.
    The largest logit is taken off before the division, whose rounding is then the smaller the likelier a token is.
    """
    penalised = {bent.row: _penalised(logits[bent.row], bent) for bent in draw.bent}
    if draw.tempered:
        divisors = torch.where(draw.temperatures == 0, 1.0, draw.temperatures)
        logits = logits.sub_(logits.amax(-1, keepdim=True)).div_(divisors[:, None])
    probabilities = torch.softmax(logits, dim=-1)
    drawn_from = probabilities
    if draw.bent:
        drawn_from = probabilities.clone()
        for bent in draw.bent:
            drawn_from[bent.row] = _bend(penalised[bent.row], bent.params)
    tokens = inverse_cdf(drawn_from, draw.uniforms)
    if draw.greedy:
        tokens = torch.where(draw.temperatures == 0, drawn_from.argmax(dim=-1), tokens)
    chosen = probabilities.gather(1, tokens[:, None]).squeeze(1)
    # Not log(0) where a penalty made the argmax a token of no probability; NaN stays NaN.
    return tokens, chosen.clamp(min=torch.finfo(torch.float32).tiny).log()


def inverse_cdf(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The index at which the running sum of each row of `weights` (S, V) first exceeds uniform * total (S).

    Sums of large vocabularies run over blocks first, then inside one block, all in float64: precise, and cheaper than a
    running sum over all of V. Never an index of weight 0, unless the whole row is.
    """
    count, vocabulary = weights.shape
    if vocabulary <= _SMALL:
        sums = weights.cumsum(dim=-1, dtype=torch.float64)
        target = uniforms.clamp(max=_LARGEST)[:, None] * sums[:, -1:]
        return torch.searchsorted(sums, target, right=True).squeeze(1).clamp_(max=vocabulary - 1)
    whole = vocabulary // _BLOCK
    blocks = weights[:, : whole * _BLOCK].view(count, whole, _BLOCK).sum(dim=-1, dtype=torch.float64)
    rest = weights[:, whole * _BLOCK :].sum(dim=-1, keepdim=True, dtype=torch.float64)
    block_sums = torch.cat([blocks, rest], dim=-1).cumsum(dim=-1)
    target = _below(uniforms[:, None] * block_sums[:, -1:], block_sums[:, -1:])
    block = torch.searchsorted(block_sums, target, right=True).clamp_(max=whole)
    before = torch.where(block > 0, block_sums.gather(1, (block - 1).clamp_(min=0)), 0.0)
    columns = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    inside = weights.gather(1, columns.clamp(max=vocabulary - 1)).masked_fill_(columns >= vocabulary, 0.0)
    running = inside.cumsum(dim=-1, dtype=torch.float64)
    offset = (running <= _below(target - before, running[:, -1:])).sum(dim=-1)
    return (block.squeeze(1) * _BLOCK + offset).clamp_(max=vocabulary - 1)


def _below(target: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def _penalised(logits: torch.Tensor, bent: Bent) -> torch.Tensor:
    logits = logits.clone()
    if bent.seen is not None:
        seen = torch.from_numpy(bent.seen).to(logits.device)
        scores = logits[seen]
        penalty = bent.params.repetition_penalty
        logits[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    return logits


def _bend(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Weights (V) after temperature, top_k, top_p and min_p, in this order, as vLLM and transformers apply them."""
    probabilities = torch.softmax(logits / (params.temperature or 1.0), dim=-1)
    if 0 < params.top_k < len(probabilities):
        kth = probabilities.topk(params.top_k).values[-1]
        probabilities = torch.where(probabilities >= kth, probabilities, 0.0)
    if params.top_p < 1:
        ranked, order = probabilities.sort(descending=True)
        running = ranked.cumsum(dim=-1, dtype=torch.float64)
        # A token stays while the ones ranked before it do not reach top_p yet, so the first always stays.
        kept = running - ranked < params.top_p * running[-1]
        probabilities = torch.zeros_like(probabilities).scatter_(0, order, torch.where(kept, ranked, 0.0))
    if params.min_p > 0:
        probabilities = torch.where(probabilities >= params.min_p * probabilities.max(), probabilities, 0.0)
    return probabilities
