"""Tokens are drawn by the inverse of the cumulative distribution, from the distribution that was asked for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.rollout.hf.sampling import Bent, Draw, inverse_cdf, sample
from agentverl.rollout.replica import SamplingParams


@pytest.mark.parametrize("before", [0, 1024])  # tokens of weight 0: small and large vocabularies are summed differently
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0]), min_size=1, max_size=300).filter(any),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_the_index_is_where_the_running_sum_exceeds_the_number(
    before: int, weights: list[float], uniform: float
) -> None:
    row = torch.tensor([0.0] * before + weights, dtype=torch.float32)
    index = int(inverse_cdf(row[None], torch.tensor([uniform], dtype=torch.float64))[0])
    running = np.cumsum(row.double().numpy())
    assert row[index] > 0
    target, slack = uniform * running[-1], 1e-9 * running[-1]
    assert running[index] > target - slack
    assert index == 0 or running[index - 1] <= target + slack


def drawn(logits: torch.Tensor, params: SamplingParams, count: int, seen: Any = None) -> np.ndarray[Any, Any]:
    """How often each token is drawn, over an even grid of numbers, as frequencies."""
    bent = [Bent(row, params, seen) for row in range(count)] if params.bends_distribution else []
    draw = Draw(
        temperatures=torch.full((count,), params.temperature),
        uniforms=(torch.arange(count, dtype=torch.float64) + 0.5) / count,
        greedy=params.temperature == 0,
        bent=bent,
    )
    tokens, _ = sample(logits.repeat(count, 1), draw)
    return np.bincount(tokens.numpy(), minlength=len(logits)) / count


LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05]))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"temperature": 0.5}, [0.16 / 0.285, 0.09 / 0.285, 0.0225 / 0.285, 0.01 / 0.285, 0.0025 / 0.285]),
        ({"temperature": 0}, [1, 0, 0, 0, 0]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_k": 99}, [0.4, 0.3, 0.15, 0.1, 0.05]),
        ({"top_p": 0.69}, [4 / 7, 3 / 7, 0, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0, 0]),
        ({"min_p": 0.3}, [0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0, 0]),
    ],
)
def test_the_distribution_is_the_one_asked_for(params: dict[str, Any], expected: list[float]) -> None:
    frequencies = drawn(LOGITS.clone(), SamplingParams.from_mapping(params), 2000)
    assert frequencies == pytest.approx(expected, abs=2e-3)


def test_a_repetition_penalty_lowers_ids_seen_before() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0])
    params = SamplingParams(repetition_penalty=2.0)
    expected = torch.softmax(torch.tensor([1.0, 1.9, -2.0]), dim=-1).numpy()
    assert drawn(logits, params, 2000, np.array([0, 2])) == pytest.approx(expected, abs=2e-3)
    greedy = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert drawn(logits, greedy, 1, np.array([0, 2])).argmax() == 1


def test_rows_of_one_batch_keep_their_own_parameters() -> None:
    params = [SamplingParams(), SamplingParams(top_k=1), SamplingParams(temperature=0.0), SamplingParams()]
    draw = Draw(
        temperatures=torch.tensor([1.0, 1.0, 0.0, 2.0]),
        uniforms=torch.full((4,), 0.999, dtype=torch.float64),
        greedy=True,
        bent=[Bent(1, params[1], None)],
    )
    tokens, log_probs = sample(LOGITS.repeat(4, 1), draw)
    assert tokens.tolist() == [4, 0, 0, 4]
    flat = torch.log_softmax(LOGITS / 2, dim=-1)[4].item()
    assert log_probs.tolist() == pytest.approx([np.log(0.05), np.log(0.4), np.log(0.4), flat], abs=1e-6)


def test_temperatures_of_1_need_no_division() -> None:
    logits = 30 * torch.randn(64, 259, generator=torch.Generator().manual_seed(0))
    draw = Draw(torch.ones(64), torch.rand(64, dtype=torch.float64), greedy=False, bent=[])
    divided, plain = sample(logits.clone(), draw), sample(logits.clone(), replace(draw, tempered=False))
    assert all(torch.equal(*pair) for pair in zip(divided, plain, strict=True))
