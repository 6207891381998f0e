"""Causal attention within each sequence of a packed row, as an attention implementation of transformers."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from agentverl.engines.fsdp.packed_layout import PackedLayout, SequenceGroup
from agentverl.engines.fsdp.row_gathers import pad_rows, take_rows
from agentverl.errors import BadInputError

PACKED_ATTENTION = "agentverl_packed"

EXPLICIT_LENGTH = 160
"""Longest sequences for which bfloat16 attention on a CPU is written out instead of fused."""

_UNSUPPORTED = ("position_bias", "s_aux", "head_mask", "alibi")


def packed_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed_layout: PackedLayout | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a packed row: query (1, Hq, N, D), key and value (1, Hk, N, D) to (1, N, Hq, D).

    Dropout is ignored: the policy that is trained is the one that was sampled from.

    Raises:
        BadInputError: the architecture needs an attention that packing does not offer.
    """
    if packed_layout is None:
        raise BadInputError(f"{type(module).__name__} does not hand on keyword arguments; packed attention needs them")
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if unsupported:
        raise BadInputError(f"{type(module).__name__} needs {', '.join(unsupported)}, which packed attention lacks")
    options = _Options(kwargs.get("scaling"), kwargs.get("sliding_window"), kwargs.get("softcap"))
    parts = [torch.split(tensor, packed_layout.group_tokens, 2) for tensor in (query, key, value)]
    outputs = [
        _attend_group(group, q, k, v, options) for group, q, k, v in zip(packed_layout.groups, *parts, strict=True)
    ]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0), None


class _Options:
    """What an architecture asks of its attention beside causality."""

    def __init__(self, scaling: float | None, sliding_window: int | None, softcap: float | None) -> None:
        self.scaling, self.sliding_window, self.softcap = scaling, sliding_window, softcap


def _attend_group(
    group: SequenceGroup, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: _Options
) -> torch.Tensor:
    """Attention of one group: inputs (1, H, n, D) to (n, H, D)."""
    query, key, value = (_batched(group, tensor) for tensor in (query, key, value))
    output = _attend(query, key, value, options).transpose(1, 2)
    output = output.reshape(group.count * group.length, *output.shape[2:])
    return output if group.unpad is None else take_rows(output, group.unpad)


def _batched(group: SequenceGroup, packed: torch.Tensor) -> torch.Tensor:
    """(1, H, n, D) to (count, H, length, D)."""
    tokens_first = packed.squeeze(0).transpose(0, 1)
    if group.pad is not None and group.unpad is not None:
        tokens_first = pad_rows(tokens_first, group.pad, group.unpad)
    return tokens_first.reshape(group.count, group.length, *tokens_first.shape[1:]).transpose(1, 2)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: _Options) -> torch.Tensor:
    """Causal attention: query (B, Hq, L, D), key and value (B, Hk, L, D) to (B, Hq, L, D)."""
    length, window = query.shape[2], options.sliding_window
    windowed = window is not None and window < length
    if options.softcap is not None or _is_faster_explicit(query):
        return _explicit(query, key, value, options)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=_causal_mask(length, window, query.device) if windowed else None,
        is_causal=not windowed,
        scale=options.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _is_faster_explicit(query: torch.Tensor) -> bool:
    """Whether matrix products and a softmax beat the fused kernel: its bfloat16 backward pass is slow on CPUs."""
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.shape[2] <= EXPLICIT_LENGTH


def _explicit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: _Options) -> torch.Tensor:
    rows, heads, length, size = query.shape
    scaling = size**-0.5 if options.scaling is None else options.scaling
    # The query heads of a key head are stacked, so keys and values are never repeated.
    stacked = query.reshape(rows, key.shape[1], -1, size)
    scores = (stacked @ key.transpose(2, 3)).view(rows, heads, length, length).float() * scaling
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    hidden = ~_causal_mask(length, options.sliding_window, query.device)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(query.dtype)
    return (weights.view(rows, key.shape[1], -1, length) @ value).view(rows, heads, length, -1)


def _causal_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(L, L), true where a query may look: at itself and at most `window - 1` tokens before."""
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return mask if window is None else mask.triu(1 - window)


AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)
