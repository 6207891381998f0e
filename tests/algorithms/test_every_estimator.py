"""What holds for every advantage estimator: masks are walls, and neither order, padding nor parts change a number."""

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms.registry import advantage_estimators
from tests.algorithms.estimator_batches import EstimatorBatch

ESTIMATORS = advantage_estimators.names()
OF_THE_BATCH = {"gae", "turn_gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "gpg"}
"""Estimators that whiten or scale by the whole batch, which a controller sees at once."""
WITH_RETURNS_UNDER_THE_MASK = {"gae", "remax", "optimal_token_baseline", "tir_optimal_token_baseline"}
WITH_ADVANTAGES_UNDER_THE_MASK = {"remax"}
"""verl leaves there what is earned later."""
OUTCOMES = {name for name in ESTIMATORS if name not in {"gae", "reinforce_plus_plus"} | WITH_RETURNS_UNDER_THE_MASK}
"""Estimators for which finite rewards under the mask count."""
SINGLE = {"grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "gdpo", "gigpo"}
SINGLE |= {"reinforce_plus_plus_baseline", "optimal_token_baseline", "tir_optimal_token_baseline", "turn_grpo"}
"""Estimators that compare with a group."""
FILLS = [float("nan"), float("inf"), -float("inf")]

every = pytest.mark.parametrize("name", ESTIMATORS)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=15)


def assert_same(ours: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], where: Tensor | None = None) -> None:
    for one, other in zip(ours, others, strict=True):
        chosen = torch.ones_like(one, dtype=torch.bool) if where is None else where
        torch.testing.assert_close(one[chosen], other[chosen], rtol=1e-7, atol=1e-9)


@every
@few
@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(name: str, seed: int, random: Random) -> None:
    batch = EstimatorBatch.random(seed)
    whole = advantages, returns = batch.estimate(name)
    order = list(range(len(batch)))
    random.shuffle(order)
    shuffled = batch.rows(order).estimate(name)
    assert_same(shuffled, (advantages[order], returns[order]))
    numbers = [hash(key) for key in batch.fields["index"]]
    assert_same(batch.estimate(name, index=torch.tensor(numbers)), whole)


@every
@few
@given(seeds, st.integers(1, 70), st.sampled_from([0.0, 1.0, *FILLS]))
def test_padding_does_not_matter(name: str, seed: int, columns: int, fill: float) -> None:
    batch = EstimatorBatch.random(seed)
    width = batch.mask.shape[1]

    def padded(column: str, values: Tensor) -> Tensor:
        kept = column in ("response_mask", "turn_index") or (column == "token_level_rewards" and fill == 1)
        return torch.nn.functional.pad(values, (0, columns), value=0 if kept else fill)

    wide = batch.mapped(padded).estimate(name)
    assert all(bool(one.isfinite().all()) for one in wide)
    assert_same((wide[0][:, :width], wide[1][:, :width]), batch.estimate(name))


@every
@few
@given(seeds, st.sampled_from(FILLS))
def test_what_is_not_finite_under_the_mask_reaches_no_result(name: str, seed: int, fill: float) -> None:
    batch = EstimatorBatch.random(seed)

    def cleared(column: str, values: Tensor) -> Tensor:
        return values if values.dtype == torch.int64 else torch.where(batch.mask, values, 0)

    def poisoned(column: str, values: Tensor) -> Tensor:
        return values if values.dtype == torch.int64 else torch.where(batch.mask, values, fill)

    found = batch.mapped(poisoned).estimate(name)
    assert all(bool(one.isfinite().all()) for one in found)
    assert_same(found, batch.mapped(cleared).estimate(name))


@every
@few
@given(seeds)
def test_nothing_is_learnt_under_the_mask(name: str, seed: int) -> None:
    batch = EstimatorBatch.random(seed)
    advantages, returns = batch.estimate(name)
    if name not in WITH_ADVANTAGES_UNDER_THE_MASK:
        assert not advantages[~batch.mask].any()
    if name not in WITH_RETURNS_UNDER_THE_MASK:
        assert not returns[~batch.mask].any()


@every
@few
@given(seeds)
def test_values_under_the_mask_do_not_matter_but_for_rewards_of_outcomes(name: str, seed: int) -> None:
    batch, other = EstimatorBatch.random(seed), EstimatorBatch.random(seed).columns
    generator = torch.Generator().manual_seed(seed)

    def changed(column: str, values: Tensor) -> Tensor:
        if column == "response_mask" or (column == "token_level_rewards" and name in OUTCOMES):
            return values
        noise = torch.randint(0, 50, values.shape, generator=generator).to(values.dtype)
        return torch.where(batch.mask, other[column], noise)

    assert_same(batch.mapped(changed).estimate(name), batch.estimate(name), batch.mask)


@every
@few
@given(seeds)
def test_shared_out_by_groups_a_batch_gets_the_same(name: str, seed: int) -> None:
    batch = EstimatorBatch.random(seed)
    advantages, returns = batch.estimate(name)
    groups: dict[Any, list[int]] = {}
    for row, key in enumerate(batch.fields["index"]):
        groups.setdefault(key, []).append(row)
    for rows in groups.values():
        part_advantages, part_returns = batch.rows(rows).estimate(name)
        if name not in OF_THE_BATCH:
            torch.testing.assert_close(part_advantages, advantages[rows], rtol=1e-7, atol=1e-9)
        if name in {"gae", "turn_gae", "reinforce_plus_plus"} or name not in OF_THE_BATCH:
            torch.testing.assert_close(part_returns, returns[rows], rtol=1e-7, atol=1e-9)


@every
@few
@given(seeds)
def test_a_mask_may_be_integers_floats_or_booleans(name: str, seed: int) -> None:
    batch = EstimatorBatch.random(seed, torch.float32)
    whole = batch.estimate(name)
    for dtype in (torch.float32, torch.bool, torch.int32):
        found = batch.estimate(name, response_mask=batch.columns["response_mask"].to(dtype))
        assert [one.dtype for one in found] == [torch.float32] * 2
        for one, other in zip(found, whole, strict=True):
            torch.testing.assert_close(one, other)


@every
@few
@given(seeds)
def test_inputs_are_left_as_they_are(name: str, seed: int) -> None:
    batch = EstimatorBatch.random(seed)
    copies = {column: values.clone() for column, values in batch.columns.items()}
    batch.estimate(name)
    for column, values in copies.items():
        assert torch.equal(values, batch.columns[column]), column


@every
def test_batches_without_rows_tokens_or_columns_give_nothing(name: str) -> None:
    batch = EstimatorBatch.random(0)
    for empty in (
        batch.rows([]),
        batch.mapped(lambda column, values: torch.zeros_like(values)),
        batch.mapped(lambda column, values: values[:, :0]),
    ):
        for one in empty.estimate(name):
            assert one.shape == empty.columns["token_level_rewards"].shape
            assert not one.any()


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_a_group_of_one_gets_no_advantage(name: str) -> None:
    batch = EstimatorBatch.random(7)
    batch.fields["index"] = [f"uid{row // 2}" if row > 1 else f"solo{row}" for row in range(len(batch))]
    assert len(batch) > 4
    advantages, _ = batch.estimate(name)
    if name == "gigpo":  # its turns are compared with those of the same state, within a trajectory too
        advantages, _ = batch.estimate(name, step_advantage_weight=0.0)
    assert not advantages[:2].any()
    assert advantages[2:].any()


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_an_index_must_fit_the_rows(name: str) -> None:
    batch = EstimatorBatch.random(7)
    with pytest.raises(ValueError, match=f"the index has 1 keys for {len(batch)} rows"):
        batch.estimate(name, index=["a"])
    with pytest.raises(ValueError, match="singleton must be 'zero' or 'raw', got 'one'"):
        batch.estimate(name, singleton="one")
