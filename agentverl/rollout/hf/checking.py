"""Whether packed steps over the KV pool compute what a model computes by itself, tried on a few tokens at the start."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from agentverl.errors import BadInputError
from agentverl.rollout.hf.attention import NAME, Segment
from agentverl.rollout.hf.flat_forward import recorded
from agentverl.rollout.hf.kv_pool import KVPool
from agentverl.rollout.hf.model import ServedModel
from agentverl.rollout.hf.planning import Step

Ids = npt.NDArray[np.int64]

_TOLERANCE = {torch.float32: 1e-3}
_HALF_TOLERANCE = 0.25  # a router of experts may choose differently


def check(served: ServedModel) -> None:
    """Compare two short sequences, packed together and continued from the cache, with plain forward passes.

    A flat forward pass is given to the model if it can be recorded and passes too.

    Raises:
        BadInputError: they differ, so the architecture needs more than transformers' attention and cache interfaces.
    """
    ids = np.arange(11, dtype=np.int64) % served.vocabulary
    sequences = ids[:7], ids[7:]
    with torch.inference_mode():
        ours = _served(served, sequences)
        served.model.set_attn_implementation("eager")
        try:
            plain = torch.stack([_plain(served, ids) for ids in (*sequences, sequences[0], *sequences)])
        finally:
            served.model.set_attn_implementation(NAME)
        off, tolerance = _relative_error(ours, plain), _TOLERANCE.get(served.dtype, _HALF_TOLERANCE)
        if not off <= tolerance:
            raise BadInputError(
                f"the hf server cannot serve {served.model.config.model_type}: with its cache the logits are off by "
                f"{off:.1%}; rollout.name=vllm serves other architectures"
            )
        served.flat = recorded(served.model, served.cache_argument, len(served.layers))
        if served.flat is not None and not _relative_error(_served(served, sequences), plain) <= tolerance:
            served.flat = None


def _served(served: ServedModel, sequences: tuple[Ids, Ids]) -> torch.Tensor:
    """Logits after both sequences, read; after the first, continued; after both, continued."""
    pool = KVPool(served.layers, served.cache_dtype, served.device)
    pool.resize(2, 8, rows=0, length=0)
    steps = [_prefill(served, *sequences), *(_decode(served, sequences[:count]) for count in (1, 2))]
    return torch.cat([served.forward(step, pool) for step in steps])


def _relative_error(ours: torch.Tensor, plain: torch.Tensor) -> float:
    return float((ours - plain).abs().max() / plain.abs().max().clamp(min=1e-6))


def _prefill(served: ServedModel, first: Ids, second: Ids) -> Step:
    parts = [first, second]
    stops = np.cumsum([len(part) for part in parts])
    return Step(
        ids=np.concatenate(parts),
        rows=np.repeat(np.arange(2), [len(part) for part in parts]),
        positions=np.concatenate([np.arange(len(part)) for part in parts]),
        segments=[
            _segment(served, row, (int(stop) - len(part), int(stop)), len(part))
            for row, (part, stop) in enumerate(zip(parts, stops, strict=True))
        ],
        keep=stops - 1,
        sampled=2,
        read=2,
    )


def _decode(served: ServedModel, sequences: Sequence[Ids]) -> Step:
    """The last token of each sequence, again."""
    count = len(sequences)
    lengths = np.array([len(ids) for ids in sequences])
    return Step(
        ids=np.array([ids[-1] for ids in sequences]),
        rows=np.arange(count),
        positions=lengths - 1,
        segments=[_segment(served, row, (row, row + 1), len(ids)) for row, ids in enumerate(sequences)],
        keep=None,
        sampled=count,
        read=count,
    )


def _segment(served: ServedModel, row: int, tokens: tuple[int, int], keys: int) -> Segment:
    lengths = torch.full((1,), keys, device=served.device)
    return Segment(row, row + 1, *tokens, tokens[1] - tokens[0], lengths, keys=keys, even=True)


def _plain(served: ServedModel, ids: Ids) -> torch.Tensor:
    output = served.model(input_ids=torch.from_numpy(ids)[None].to(served.device), use_cache=False)
    logits: torch.Tensor = output.logits[0, -1]
    return logits.float()
