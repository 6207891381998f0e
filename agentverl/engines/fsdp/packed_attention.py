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

Tensors = tuple[torch.Tensor, ...]

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
    parts = zip(*(torch.split(tensor, packed_layout.part_tokens, 2) for tensor in (query, key, value)), strict=True)
    outputs = [_attend_group(group, next(parts), options) for group in packed_layout.groups]
    for prompt in packed_layout.shared:
        of_prompt = next(parts)
        outputs.append(_attend_group(SequenceGroup(prompt.tokens, 1, prompt.tokens), of_prompt, options))
        outputs += [_attend_group(group, next(parts), options, of_prompt) for group in prompt.continuations]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0), None


class _Options:
    """What an architecture asks of its attention beside causality."""

    def __init__(self, scaling: float | None, sliding_window: int | None, softcap: float | None) -> None:
        self.scaling, self.sliding_window, self.softcap = scaling, sliding_window, softcap


def _attend_group(
    group: SequenceGroup, tensors: Tensors, options: _Options, prompt: Tensors | None = None
) -> torch.Tensor:
    """Attention of one group: query, key and value (1, H, n, D), and those of the prompt before it, to (n, H, D)."""
    query, key, value = (_batched(group, tensor) for tensor in tensors)
    if prompt is not None:
        key, value = (
            torch.cat([before.expand(group.count, -1, -1, -1), own], 2)
            for before, own in zip(prompt[1:], (key, value), strict=True)
        )
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
    """Causal attention of the last L of S tokens: query (B, Hq, L, D), key and value (B, Hk, S, D) to (B, Hq, L, D)."""
    length, keys, window = query.shape[2], key.shape[2], options.sliding_window
    plain = length == keys and (window is None or window >= keys)
    if options.softcap is not None or _is_faster_explicit(key):
        return _explicit(query, key, value, options)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if plain else _causal_mask(length, keys, window, query.device),
        is_causal=plain,
        scale=options.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _is_faster_explicit(key: torch.Tensor) -> bool:
    """Whether matrix products and a softmax beat the fused kernel: its bfloat16 backward pass is slow on CPUs."""
    return key.device.type == "cpu" and key.dtype == torch.bfloat16 and key.shape[2] <= EXPLICIT_LENGTH


def _explicit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: _Options) -> torch.Tensor:
    rows, heads, length, size = query.shape
    keys = key.shape[2]
    scaling = size**-0.5 if options.scaling is None else options.scaling
    # The query heads of a key head are stacked, so keys and values are never repeated.
    stacked = query.reshape(rows * key.shape[1], -1, size)
    keys_first, values = key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)
    bias = _causal_bias(length, keys, options.sliding_window, query).repeat(heads // key.shape[1], 1)
    if options.softcap is None:
        scores = torch.baddbmm(bias, stacked, keys_first, alpha=scaling)
    else:
        scores = (stacked @ keys_first).float() * scaling
        scores = torch.tanh(scores / options.softcap) * options.softcap + bias
    return (scores.softmax(-1).to(value.dtype) @ values).view(rows, heads, length, -1)


def _causal_bias(length: int, keys: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """(L, S), 0 where one of the last L of S tokens may look and minus infinity elsewhere."""
    hidden = ~_causal_mask(length, keys, window, like.device)
    return like.new_zeros(length, keys).masked_fill_(hidden, float("-inf"))


def _causal_mask(length: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(L, S), true where one of the last L of S tokens may look: at itself and at most `window - 1` tokens before."""
    mask = torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)
    return mask if window is None else mask.triu(keys - length + 1 - window)


AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)
