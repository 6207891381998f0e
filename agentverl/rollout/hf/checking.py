"""Whether packed steps over the KV pool compute what a model computes by itself, tried on a few tokens at the start."""

import numpy as np
import numpy.typing as npt
import torch

from agentverl.errors import BadInputError
from agentverl.rollout.hf.attention import NAME, Segment
from agentverl.rollout.hf.kv_pool import KVPool
from agentverl.rollout.hf.model import ServedModel
from agentverl.rollout.hf.planning import Step

Ids = npt.NDArray[np.int64]

_TOLERANCE = {torch.float32: 1e-3}
_HALF_TOLERANCE = 0.25  # a router of experts may choose differently


def check(served: ServedModel) -> None:
    """Compare two short sequences, packed together and continued from the cache, with plain forward passes.

    Raises:
        BadInputError: they differ, so the architecture needs more than transformers' attention and cache interfaces.
    """
    ids = np.arange(11, dtype=np.int64) % served.vocabulary
    first, second = ids[:7], ids[7:]
    with torch.inference_mode():
        pool = KVPool(served.layers, served.dtype, served.device)
        pool.resize(2, 8, rows=0, length=0)
        packed = served.forward(_prefill(served, first[:-1], second), pool)[1:]
        continued = served.forward(_decode(served, first), pool)
        ours = torch.cat([continued, packed])
        served.model.set_attn_implementation("eager")
        try:
            plain = torch.stack([_plain(served, first), _plain(served, second)])
        finally:
            served.model.set_attn_implementation(NAME)
    error = (ours - plain).abs().max() / plain.abs().max().clamp(min=1e-6)
    if not error <= _TOLERANCE.get(served.dtype, _HALF_TOLERANCE):
        raise BadInputError(
            f"the hf server cannot serve {served.model.config.model_type}: with its cache the logits are off by "
            f"{float(error):.1%}; rollout.name=vllm serves other architectures"
        )


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


def _decode(served: ServedModel, ids: Ids) -> Step:
    last = len(ids) - 1
    zero = np.zeros(1, np.int64)
    segment = _segment(served, 0, (0, 1), len(ids))
    return Step(ids=ids[last:], rows=zero, positions=zero + last, segments=[segment], keep=None, sampled=1, read=1)


def _segment(served: ServedModel, row: int, tokens: tuple[int, int], keys: int) -> Segment:
    lengths = torch.full((1,), keys, device=served.device)
    return Segment(row, row + 1, *tokens, tokens[1] - tokens[0], lengths, keys=keys, even=True)


def _plain(served: ServedModel, ids: Ids) -> torch.Tensor:
    output = served.model(input_ids=torch.from_numpy(ids)[None].to(served.device), use_cache=False)
    logits: torch.Tensor = output.logits[0, -1]
    return logits.float()
