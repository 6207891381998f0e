"""Attention of one packed step: each row's new tokens attend to that row's slot of the KV pool.

Legend: N packed tokens of the step, R rows, H query heads, K key heads, Q new tokens a row, L keys a row, D head size.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

NAME = "agentverl_slots"

Masks = dict[int | None, torch.Tensor | None]


@dataclass(slots=True)
class Segment:
    """Rows [first, last) whose new tokens, `queries` each, are tokens [start, stop) of the packed step.

    `lengths` are the keys of each row, its new tokens included (R). Rows differ in length only where `queries` is 1.
    """

    first: int
    last: int
    start: int
    stop: int
    queries: int
    lengths: torch.Tensor
    keys: int
    even: bool
    masks: Masks = field(default_factory=dict)

    def is_causal(self, window: int | None) -> bool:
        """Whether a square causal mask is all that is needed."""
        return self.queries > 1 and self.keys == self.queries and (window is None or window >= self.keys)

    def mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """What is added to the scores, broadcastable to (R, H, Q, L), made once a step; None where every key counts."""
        window = None if window is None or window >= self.keys else window
        if window not in self.masks:
            self.masks[window] = self._build(window, like)
        return self.masks[window]

    def _build(self, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        if window is None and self.even and self.queries == 1:
            return None
        keys = torch.arange(self.keys, device=like.device)
        last_key = self.lengths[:, None] - self.queries + torch.arange(self.queries, device=like.device)
        hidden = keys > last_key[..., None]
        if window is not None:
            hidden |= keys <= last_key[..., None] - window
        bias = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
        return bias.masked_fill_(hidden, float("-inf"))[:, None]


_step = threading.local()


@contextmanager
def attending(segments: list[Segment]) -> Iterator[None]:
    """Within it, this thread's forward passes are packed steps of these segments."""
    _step.segments = segments
    try:
        yield
    finally:
        del _step.segments


@contextmanager
def recording(attention: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Within it, this thread's forward passes call `attention` with what `slot_attention` would have computed from."""
    _step.recorder = attention
    try:
        yield
    finally:
        del _step.recorder


def slot_attention(
    module: torch.nn.Module | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' signature: query (1, H, N, D), key and value whole slots (slots, K, capacity, D).

    Returns (1, N, H, D), computed in the type of keys and values. `softcap` bounds the scores by tanh (Gemma 2),
    `s_aux` are learned sinks (gpt-oss).
    """
    segments: list[Segment] | None = getattr(_step, "segments", None)
    if segments is None:
        return _step.recorder(query, key, value, scaling, sliding_window, softcap, s_aux), None
    dtype, query = query.dtype, query.to(key.dtype)
    outputs = []
    for segment in segments:
        rows = slice(segment.first, segment.last)
        keys, values = key[rows, :, : segment.keys], value[rows, :, : segment.keys]
        queries = query[0, :, segment.start : segment.stop]
        if softcap is not None or s_aux is not None:
            bias = segment.mask(sliding_window, query)
            outputs.append(_explicit(queries, keys, values, bias, _Scores(scaling, softcap, s_aux)))
        elif _is_faster_in_products(segment, query):
            outputs.append(_decode_in_products(queries, keys, values, segment.mask(sliding_window, query), scaling))
        elif segment.queries == 1:
            outputs.append(_decode(queries, keys, values, segment.mask(sliding_window, query), scaling))
        else:
            outputs.append(_prefill(queries, keys, values, segment, (sliding_window, scaling)))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0).to(dtype), None


def _is_faster_in_products(segment: Segment, query: torch.Tensor) -> bool:
    """Whether matrix products and a softmax beat the fused kernel, which is slow for single float32 queries on CPUs."""
    return segment.queries == 1 and query.dtype == torch.float32 and query.device.type == "cpu"


def _decode_in_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    # The heads of a group take the place of query positions, so keys and values are never repeated.
    rows, key_heads, keys, size = key.shape
    grouped = query.transpose(0, 1).reshape(rows * key_heads, -1, size)
    start, share = (grouped.new_empty(1, 1, 1), 0) if bias is None else (bias.expand(-1, key_heads, 1, -1), 1)
    scores = torch.baddbmm(
        start.reshape(-1, 1, start.shape[-1]),
        grouped,
        key.reshape(-1, keys, size).transpose(1, 2),
        beta=share,
        alpha=size**-0.5 if scale is None else scale,
    )
    output = torch.bmm(torch.softmax(scores, -1), value.reshape(-1, keys, value.shape[-1]))
    return output.view(rows, -1, value.shape[-1])


def _decode(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    # The heads of a group take the place of query positions, so keys are read once and never repeated.
    rows, key_heads = key.shape[:2]
    grouped = query.view(key_heads, -1, rows, query.shape[-1]).permute(2, 0, 1, 3)
    output = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=bias, scale=scale)
    return output.reshape(rows, -1, value.shape[-1])


def _prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segment: Segment,
    window_and_scale: tuple[int | None, float | None],
) -> torch.Tensor:
    window, scale = window_and_scale
    causal = segment.is_causal(window)
    per_row = query.view(query.shape[0], -1, segment.queries, query.shape[-1]).transpose(0, 1)
    output = functional.scaled_dot_product_attention(
        per_row,
        key,
        value,
        attn_mask=None if causal else segment.mask(window, query),
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[0] != key.shape[1],
    )
    return output.transpose(1, 2).reshape(-1, query.shape[0], value.shape[-1])


@dataclass(frozen=True, slots=True)
class _Scores:
    scale: float | None
    softcap: float | None
    sinks: torch.Tensor | None


def _explicit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, how: _Scores
) -> torch.Tensor:
    rows, key_heads, keys = key.shape[:3]
    heads, size = query.shape[0], query.shape[-1]
    # The query heads of a key head are stacked, so keys and values are never repeated.
    stacked = query.view(key_heads, heads // key_heads, rows, -1, size).permute(2, 0, 1, 3, 4)
    stacked = stacked.reshape(rows, key_heads, -1, size)
    scores = (stacked @ key.transpose(-1, -2)).view(rows, heads, -1, keys)
    scores *= how.scale if how.scale is not None else size**-0.5
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    if bias is not None:
        scores += bias
    if how.sinks is not None:
        sinks = how.sinks.reshape(1, -1, 1, 1).expand(rows, -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)[..., :keys]
    output = weights.reshape(rows, key_heads, -1, keys) @ value
    return output.view(rows, heads, -1, value.shape[-1]).transpose(1, 2).reshape(-1, heads, value.shape[-1])


AttentionInterface.register(NAME, slot_attention)
