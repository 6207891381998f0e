"""Prompts that several sequences begin with are computed once, and nothing but time can tell."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.engines.base import ModelOutput
from agentverl.engines.fsdp.packed_attention import packed_attention_forward
from agentverl.engines.fsdp.packed_layout import PackedLayout
from agentverl.engines.fsdp.shared_prompts import families, schedule
from agentverl.engines.metrics import Metric
from agentverl.engines.settings import MicroBatchSettings
from agentverl.errors import BadInputError
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from tests.engines.tiny_models import CONFIGS, batch_of, engine_of, padded_reference, reference_log_probs

GROUPS = [(12, [9, 2, 30, 0]), (3, [5, 8]), (20, [4, 4, 40]), (7, [6])]
"""Prompt lengths with the response lengths of their samples; the second prompt is too short to be shared."""


def grouped_batch(groups: list[tuple[int, list[int]]], seed: int = 0) -> DataProto:
    """Rows whose prompts are the same within each group, one of each group after the other."""
    by_sample = [
        (number, prompt, responses[sample])
        for sample in range(max(len(responses) for _, responses in groups))
        for number, (prompt, responses) in enumerate(groups)
        if sample < len(responses)
    ]
    data = batch_of([(prompt, response) for _, prompt, response in by_sample], seed)
    first = {number: row for row, (number, _, _) in reversed(list(enumerate(by_sample)))}
    prompts = data.batch.ragged("prompts")
    data.batch["prompts"] = Ragged.from_list([prompts[first[number]] for number, _, _ in by_sample])
    return data


def weighted_loss(output: ModelOutput, data: DataProto) -> tuple[torch.Tensor, dict[str, Metric | float]]:
    """A loss with a gradient through log-probabilities and entropies."""
    assert output.entropy is not None
    advantages, weight = data.batch.ragged("advantages").to_padded(), data.batch.ragged("loss_weight").to_padded()
    loss = (weight * (-advantages * output.log_probs.exp() - 0.3 * output.entropy)).sum()
    return loss, {"loss": Metric(float(loss.detach()), "sum")}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_tokens", [None, 60])
def test_log_probs_and_gradients_equal_those_of_a_padded_forward(name: str, max_tokens: int | None) -> None:
    engine, data = engine_of(name, max_tokens=max_tokens), grouped_batch(GROUPS)
    model = padded_reference(engine)
    log_probs, entropy = reference_log_probs(model, data)
    computed = engine.infer_batch(data, calculate_entropy=True)
    torch.testing.assert_close(computed.batch.ragged("log_probs").to_padded(), log_probs.detach(), rtol=1e-5, atol=1e-5)
    engine.forward_backward_batch(data, weighted_loss, calculate_entropy=True)
    torch.autograd.backward(weighted_loss(ModelOutput(log_probs, entropy), data)[0])
    expected = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    for key, gradient in expected.items():
        ours = engine.weights.masters[key].grad
        assert ours is not None
        assert float((ours - gradient).abs().max()) <= 1e-5 * max(float(gradient.abs().max()), 1e-3)


def test_a_shared_prompt_is_forwarded_once_but_for_its_last_token() -> None:
    data = grouped_batch([(12, [9, 2, 5])])
    mask = data.batch.ragged("response_mask")
    data.batch["response_mask"] = mask.like(torch.ones_like(mask.values))
    engine = engine_of()
    engine.infer_batch(data)
    assert engine.tokens_forwarded == 11 + 9 + 2 + 5


def test_bfloat16_follows_float32() -> None:
    data = grouped_batch([(40, [9, 2, 30]), (20, [4, 4])])
    exact, rounded = (
        engine_of("llama", dtype=dtype).infer_batch(data).batch.ragged("log_probs").values
        for dtype in ("float32", "bfloat16")
    )
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("window", [None, 4])
@given(prompt=st.integers(1, 30), rest=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_continuations_attend_as_whole_sequences_do(window: int | None, prompt: int, rest: list[int]) -> None:
    rest = sorted(rest, reverse=True)
    random = torch.Generator().manual_seed(prompt + sum(rest))
    query, key, value = (torch.randn(1, heads, prompt + sum(rest), 8, generator=random) for heads in (4, 2, 2))

    def attention(layout: PackedLayout, *tensors: torch.Tensor) -> torch.Tensor:
        q, k, v = tensors
        module = torch.nn.Identity()
        return packed_attention_forward(module, q, k, v, None, packed_layout=layout, sliding_window=window)[0]

    packed = attention(PackedLayout.of([], [(prompt, rest)]), query, key, value)
    at = prompt
    for length in rest:
        chosen = [*range(prompt), *range(at, at + length)]
        alone = attention(PackedLayout.of([len(chosen)]), *(tensor[:, :, chosen] for tensor in (query, key, value)))
        torch.testing.assert_close(packed[:, chosen], alone, rtol=1e-5, atol=1e-5)
        at += length


samples = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@given(
    groups=st.lists(st.tuples(st.integers(1, 40), samples), min_size=1, max_size=6),
    max_tokens=st.sampled_from([None, 80, 200]),
    max_sequences=st.sampled_from([None, 1, 3]),
)
def test_every_row_is_in_one_micro_batch_within_the_limits(
    groups: list[tuple[int, list[int]]], max_tokens: int | None, max_sequences: int | None
) -> None:
    prompts = Ragged.from_list([[number] * prompt for number, (prompt, rest) in enumerate(groups) for _ in rest])
    lengths = [prompt + rest - 1 if rest else 0 for prompt, responses in groups for rest in responses]
    limits = MicroBatchSettings(max_tokens=max_tokens, max_sequences=max_sequences)
    batches = schedule(prompts, lengths, limits)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        mine = [lengths[row] for row in batch]
        assert max_sequences is None or len(batch) <= max_sequences
        assert max_tokens is None or sum(one.tokens(mine) for one in families(prompts[batch], mine)) <= max_tokens


def test_samples_of_a_prompt_stay_together_and_are_cut_where_they_do_not_fit() -> None:
    prompts = Ragged.from_list([[1] * 30, [2] * 30] * 4)
    lengths = [40] * 8
    assert schedule(prompts, lengths, MicroBatchSettings(max_tokens=80)) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert schedule(prompts, lengths, MicroBatchSettings(max_tokens=None, max_sequences=4)) == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
    ]
    cut = schedule(prompts, lengths, MicroBatchSettings(max_tokens=60))
    assert sorted(map(len, cut)) == [2, 2, 2, 2]
    with pytest.raises(BadInputError, match="a sequence of 40 tokens does not fit"):
        schedule(prompts, lengths, MicroBatchSettings(max_tokens=39))
