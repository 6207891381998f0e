"""Grouping sequences never changes attention, and what packing cannot do is refused."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.engines.fsdp.packed_attention import packed_attention_forward
from agentverl.engines.fsdp.packed_layout import GROUP_SLACK, PackedLayout
from agentverl.engines.fsdp.token_log_probs import chunk_tokens, token_log_probs
from agentverl.errors import BadInputError
from tests.engines.tiny_models import engine_of


def attention(lengths: list[int], *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
    """Of query, key and value (1, H, N, D) as a layer would ask for it, (1, N, H, D)."""
    query, key, value = tensors
    layout = PackedLayout.of(lengths)
    return packed_attention_forward(torch.nn.Identity(), query, key, value, None, packed_layout=layout, **options)[0]


descending = st.lists(st.integers(1, 60), min_size=1, max_size=12).map(lambda lengths: sorted(lengths, reverse=True))


@given(descending)
def test_groups_hold_every_sequence_once_and_waste_little(lengths: list[int]) -> None:
    groups = PackedLayout.of(lengths).groups
    assert sum(group.count for group in groups) == len(lengths)
    assert sum(group.tokens for group in groups) == sum(lengths)
    for group in groups:
        assert group.count * group.length - group.tokens <= group.count * max(GROUP_SLACK, group.length // 8)


@pytest.mark.parametrize("window", [None, 4])
@given(lengths=descending)
def test_attention_of_a_packed_row_is_that_of_each_sequence_alone(window: int | None, lengths: list[int]) -> None:
    random = torch.Generator().manual_seed(sum(lengths))
    query, key, value = (
        torch.randn(1, heads, sum(lengths), 8, generator=random, requires_grad=True) for heads in (4, 2, 2)
    )
    packed = attention(lengths, query, key, value, scaling=0.3, sliding_window=window)
    parts = [torch.split(tensor, lengths, 2) for tensor in (query, key, value)]
    alone = torch.cat(
        [
            attention([length], *part, scaling=0.3, sliding_window=window)
            for length, part in zip(lengths, zip(*parts, strict=True), strict=True)
        ],
        1,
    )
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-5)
    slope = torch.randn(packed.shape, generator=random)
    gradients = [torch.autograd.grad((output * slope).sum(), (query, key, value)) for output in (packed, alone)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_written_out_bfloat16_attention_follows_the_fused_one_in_float32() -> None:
    random = torch.Generator().manual_seed(0)
    exact = [torch.randn(1, heads, 90, 16, generator=random) for heads in (4, 2, 2)]
    outputs = [
        attention([50, 40], *(tensor.to(dtype) for tensor in exact)).float()
        for dtype in (torch.float32, torch.bfloat16)
    ]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0.05, atol=0.03)


def test_an_attention_that_packing_lacks_is_refused() -> None:
    tensors = [torch.randn(1, 2, 3, 8) for _ in range(3)]
    with pytest.raises(BadInputError, match="position_bias"):
        attention([3], *tensors, position_bias=torch.zeros(1))
    with pytest.raises(BadInputError, match="keyword arguments"):
        packed_attention_forward(torch.nn.Identity(), tensors[0], tensors[1], tensors[2], None)


@pytest.mark.parametrize("kept_bytes", [0, 2**30])
def test_log_probs_of_several_chunks_equal_those_of_all_logits(kept_bytes: int) -> None:
    vocabulary, random = 4096, torch.Generator().manual_seed(0)
    count = chunk_tokens(vocabulary) * 2 + 3
    weight, hidden = (torch.randn(rows, 8, generator=random).requires_grad_() for rows in (vocabulary, count))
    bias = torch.randn(vocabulary, generator=random).requires_grad_()
    labels = torch.randint(0, vocabulary, (count,), generator=random)
    temperature = torch.rand(count, generator=random) + 0.5
    slopes = torch.randn(2, count, generator=random)
    ours = token_log_probs(hidden, weight, bias, labels, temperature, with_entropy=True, kept_bytes=kept_bytes)
    logits = hidden.double() @ weight.double().T + bias.double()
    log_softmax = torch.log_softmax(logits / temperature[:, None], -1)
    exact = log_softmax.gather(1, labels[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1)
    inputs = (hidden, weight, bias)
    gradients = [
        torch.autograd.grad((pair[0] * slopes[0] + pair[1] * slopes[1]).sum(), inputs) for pair in (ours, exact)
    ]
    for one, other in zip((*ours, *gradients[0]), (*exact, *gradients[1]), strict=True):
        assert float((one - other).detach().abs().max()) <= 1e-5 * float(other.detach().abs().max())


def test_a_cap_on_logits_is_noticed() -> None:
    assert engine_of("qwen2").model.has_plain_head
    assert not engine_of("gemma2").model.has_plain_head
