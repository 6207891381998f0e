"""Weights, rejection and diagnostics: worked numbers, bounds, and what must not matter."""

import math
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms import (
    compute_offpolicy_metrics,
    compute_rollout_correction_and_rejection_mask,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from agentverl.errors import BadInputError
from agentverl.settings.correction_bounds import RS_OPTIONS

RATIOS = torch.tensor([[0.25, 1.0, 4.0], [2.0, 2.0, 7.0]]).log()
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])

seeds = st.integers(0, 2**32 - 1)


def weights(**how: Any) -> list[list[float]]:
    found, _ = compute_rollout_correction_weights(RATIOS, MASK, **how)
    return [[round(value, 5) for value in row] for row in found.tolist()]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"rollout_is_threshold": 3.0}, [[0.25, 1, 3], [2, 2, 0]]),
        ({"rollout_is_threshold": "3"}, [[0.25, 1, 3], [2, 2, 0]]),
        ({"rollout_is_threshold": "0.5_3"}, [[0, 1, 0], [2, 2, 0]]),
        ({"rollout_is": "sequence", "rollout_is_threshold": 9}, [[1, 1, 1], [4, 4, 0]]),
        ({"rollout_is": "sequence", "rollout_is_threshold": 3}, [[1, 1, 1], [3, 3, 0]]),
        ({"rollout_is": "sequence", "rollout_is_threshold": "2_9"}, [[0, 0, 0], [4, 4, 0]]),
        (
            {"rollout_is_threshold": 3.0, "rollout_is_batch_normalize": True},
            [[0.15152, 0.60606, 1.81818], [1.21212, 1.21212, 0]],
        ),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": 3.0, "rollout_is_batch_normalize": True},
            [[0.5, 0.5, 0.5], [1.5, 1.5, 0]],
        ),
        ({"rollout_is_threshold": "8_9", "rollout_is_batch_normalize": True}, [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_weights_are_cut_zeroed_and_normalised(how: dict[str, Any], expected: list[list[float]]) -> None:
    assert weights(**how) == expected


@pytest.mark.parametrize(
    ("option", "threshold", "kept"),
    [
        ("token_k1", "0.3_3", [[0, 1, 0], [1, 1, 0]]),
        ("token_k1", 3, [[0, 1, 0], [1, 1, 0]]),
        ("token_k2", 0.5, [[0, 1, 0], [1, 1, 0]]),
        ("token_k3", 0.7, [[1, 1, 0], [1, 1, 0]]),
        ("seq_sum_k1", "0.5_2", [[1, 1, 1], [0, 0, 0]]),
        ("seq_mean_k1", "0.9_1.1", [[1, 1, 1], [0, 0, 0]]),
        ("seq_sum_k2", 1.0, [[0, 0, 0], [1, 1, 0]]),
        ("seq_mean_k2", 0.3, [[0, 0, 0], [1, 1, 0]]),
        ("seq_sum_k3", 1.0, [[0, 0, 0], [1, 1, 0]]),
        ("seq_mean_k3", 0.4, [[0, 0, 0], [1, 1, 0]]),
        ("seq_max_k2", 0.5, [[0, 0, 0], [1, 1, 0]]),
        ("seq_max_k3", 0.5, [[0, 0, 0], [1, 1, 0]]),
        ("seq_mean_k1,token_k3", "0.4_2.5,0.7", [[1, 1, 0], [1, 1, 0]]),
        ("token_k2, token_k3 ,token_k2", "0.5,0.1", [[0, 1, 0], [0, 0, 0]]),
    ],
)
def test_rejection_keeps_what_lies_within_all_bounds(option: str, threshold: Any, kept: list[list[int]]) -> None:
    mask, metrics = compute_rollout_rejection_mask(RATIOS, MASK, option, threshold)
    assert mask.tolist() == kept
    assert mask.dtype == MASK.dtype
    assert metrics["rollout_rs_masked_fraction"] == pytest.approx(1 - sum(map(sum, kept)) / 5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rollout_is": "geometric"}, "Invalid rollout_is: geometric. Must be one of sequence, token"),
        ({"rollout_is": "token", "rollout_is_threshold": -1.0}, "upper bound must be positive, got -1.0"),
        ({"rollout_is": "token", "rollout_is_threshold": "-1_2"}, "lower bound must be positive, got -1.0"),
        ({"rollout_is": "token", "rollout_is_threshold": "3_2"}, "lower bound must be <= upper bound"),
        ({"rollout_is": "token", "rollout_is_threshold": "1_2_3"}, "Invalid rollout_is_threshold '1_2_3'"),
        ({"rollout_is": "token", "rollout_is_threshold": "inf"}, "Invalid rollout_is_threshold 'inf'"),
        ({"rollout_is": "token", "rollout_is_threshold": True}, "must be a number or text such as 0.5_2.0, got True"),
        ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2}, "Invalid rollout_rs option: seq_max_k1"),
        ({"rollout_rs": " , ", "rollout_rs_threshold": 2}, "must name at least one of"),
        ({"rollout_rs": "token_k1"}, "needs rollout_rs_threshold"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": " "}, "must be a number or text"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "must be a single upper bound"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": 0}, "must be positive, got '0'"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0_2"}, "must be positive, got '0_2'"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}, "keeps nothing"),
        ({"rollout_rs": "token_k1,token_k2", "rollout_rs_threshold": "1,2,3"}, "one threshold for all options or 2"),
    ],
)
def test_errors_say_what_is_wrong(how: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        compute_rollout_correction_and_rejection_mask(RATIOS, torch.zeros(2, 3), MASK, **how)


def test_shapes_and_a_mask_without_a_token_are_refused() -> None:
    with pytest.raises(BadInputError, match="does not match rollout_log_prob shape"):
        compute_rollout_correction_and_rejection_mask(RATIOS, torch.zeros(2, 2), MASK)
    with pytest.raises(BadInputError, match="does not match response_mask shape"):
        compute_rollout_correction_and_rejection_mask(RATIOS, RATIOS, MASK[:1])
    with pytest.raises(BadInputError, match="at least one valid token"):
        compute_rollout_correction_and_rejection_mask(RATIOS, RATIOS, torch.zeros(2, 3))


def test_the_same_policy_is_at_no_distance() -> None:
    log_prob = torch.log(torch.tensor([[0.5, 0.5, 0.9], [0.25, 0.25, 0.9]]))
    metrics = compute_offpolicy_metrics(log_prob, log_prob, MASK)
    assert metrics["training_ppl"] == metrics["rollout_ppl"]
    assert compute_offpolicy_metrics(log_prob[1:], None, MASK[1:]) == {
        "training_ppl": pytest.approx(4),
        "training_log_ppl": pytest.approx(math.log(4)),
    }
    for name in ("kl", "k3_kl", "log_ppl_diff", "log_ppl_abs_diff", "chi2_token", "chi2_seq"):
        assert metrics[name] == 0
    assert metrics["ppl_ratio"] == 1


def columns(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of two policies and a mask with at least one token."""
    random = torch.Generator().manual_seed(seed)
    rows, width = (int(torch.randint(1, 6, (), generator=random)) for _ in range(2))
    mask = (torch.rand(rows, width, generator=random) < 0.7).long()
    mask[0, 0] = 1
    rollout = -torch.rand(rows, width, generator=random, dtype=torch.float64) * 2
    return rollout + torch.randn(rows, width, generator=random, dtype=torch.float64) * 0.4, rollout, mask


@given(seed=seeds, fill=st.sampled_from([math.nan, math.inf, -math.inf]), option=st.sampled_from(RS_OPTIONS))
@settings(max_examples=50)
def test_nothing_under_the_mask_counts(seed: int, fill: float, option: str) -> None:
    old, rollout, mask = columns(seed)
    how: dict[str, Any] = {"rollout_is": "sequence", "rollout_rs": option, "rollout_rs_threshold": 1.2}
    clean, dirty = (
        compute_rollout_correction_and_rejection_mask(
            *(torch.where(mask != 0, column, under) for column in (old, rollout)), mask, **how
        )
        for under in (0.0, fill)
    )
    assert clean[0] is not None
    assert dirty[0] is not None
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])
    assert clean[2] == pytest.approx(dirty[2])
    assert all(math.isfinite(value) for value in dirty[2].values())
    assert dirty[0][mask == 0].abs().sum() == 0


@given(seed=seeds, random=st.randoms(use_true_random=False), level=st.sampled_from(["token", "sequence"]))
@settings(max_examples=50)
def test_the_order_of_rows_and_padding_change_nothing(seed: int, random: Random, level: str) -> None:
    old, rollout, mask = columns(seed)
    order = list(range(len(mask)))
    random.shuffle(order)
    how: dict[str, Any] = {
        "rollout_is": level,
        "rollout_is_batch_normalize": True,
        "rollout_rs": "token_k1,seq_mean_k3",
        "rollout_rs_threshold": "1.5,0.2",
    }
    weights, kept, _ = compute_rollout_correction_and_rejection_mask(old, rollout, mask, **how)
    wide = (torch.nn.functional.pad(column[order], (0, 2, 0, 1)) for column in (old, rollout, mask))
    wide_weights, wide_kept, _ = compute_rollout_correction_and_rejection_mask(*wide, **how)
    assert weights is not None
    assert wide_weights is not None
    torch.testing.assert_close(wide_weights[: len(order), : mask.shape[1]], weights[order])
    assert torch.equal(wide_kept[: len(order), : mask.shape[1]], kept[order])
