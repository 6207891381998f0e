"""One weight a token gives the loss of the whole batch, however its rows are ordered, padded, cut or shared out."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms.aggregation import MODES, agg_loss, loss_weights, row_loss_weights
from agentverl.errors import BadInputError

SCALE = 7.0

masks = st.integers(0, 2**32 - 1).map(lambda seed: random_batch(np.random.default_rng(seed)))
modes = st.sampled_from(MODES)


def random_batch(random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(B, T) losses in float64, and a mask; some rows have no token."""
    rows, width = int(random.integers(1, 6)), int(random.integers(1, 7))
    mask = random.random((rows, width)) < random.choice([0.2, 0.7, 1.0])
    return torch.from_numpy(random.normal(size=(rows, width))), torch.from_numpy(mask.astype(np.int64))


def weighted(losses: Tensor, mask: Tensor, weights: Tensor) -> float:
    return float(agg_loss(losses, mask, "token-mean", loss_weight=weights.double()))


@given(masks, modes)
def test_weights_give_the_loss_of_the_mode(batch: tuple[Tensor, Tensor], mode: str) -> None:
    losses, mask = batch
    expected = float(agg_loss(losses, mask, mode, loss_scale_factor=SCALE))
    assert weighted(losses, mask, loss_weights(mask, mode, None, SCALE)) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert weighted(losses, mask, loss_weights(mask, mode)) == pytest.approx(
        float(agg_loss(losses, mask, mode)), rel=1e-5, abs=1e-7
    )


@given(masks, modes, st.randoms(use_true_random=False))
def test_order_padding_micro_batches_and_ranks_change_nothing(
    batch: tuple[Tensor, Tensor], mode: str, random: Random
) -> None:
    losses, mask = batch
    weights = loss_weights(mask, mode, None, SCALE)
    whole = weighted(losses, mask, weights)
    order = list(range(len(mask)))
    random.shuffle(order)
    torch.testing.assert_close(loss_weights(mask[order], mode, None, SCALE), weights[order])
    padded = torch.nn.functional.pad(mask, (0, 3))
    padded_rows = torch.nn.functional.pad(padded, (0, 0, 0, 2))
    wide = loss_weights(padded_rows, mode, None, SCALE)
    torch.testing.assert_close(wide[: len(mask), : mask.shape[1]], weights)
    assert wide[len(mask) :].abs().sum() == 0
    assert sum(weighted(losses[[row]], mask[[row]], weights[[row]]) for row in order) == pytest.approx(whole, abs=1e-7)
    ranks = [order[::2], order[1::2]]
    averaged = sum(
        float(agg_loss(losses[rows], mask[rows], mode, dp_size=2, loss_weight=weights[rows].double())) for rows in ranks
    )
    assert averaged / 2 == pytest.approx(whole, abs=1e-7)


@given(masks, modes, st.data())
def test_splitting_a_trajectory_into_sequences_changes_nothing(
    batch: tuple[Tensor, Tensor], mode: str, data: st.DataObject
) -> None:
    losses, mask = batch
    width = mask.shape[1]
    cuts = data.draw(st.lists(st.integers(0, width), min_size=len(mask), max_size=len(mask)))
    before = torch.arange(width) < torch.tensor(cuts)[:, None]
    split_mask = torch.cat([mask * before, mask * ~before])
    trajectories = [("uid", row) for row in range(len(mask))] * 2
    whole = weighted(losses, mask, loss_weights(mask, mode, None, SCALE))
    split = loss_weights(split_mask, mode, trajectories, SCALE)
    assert weighted(losses.repeat(2, 1), split_mask, split) == pytest.approx(whole, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_under_the_mask_reaches_loss_or_gradient(mode: str) -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    losses = torch.tensor([[1.0, float("nan"), 2.0], [float("inf"), float("-inf"), float("nan")]], requires_grad=True)
    for weight in (None, torch.tensor([[0.5, float("nan"), 0.5], [float("inf")] * 3])):
        loss = agg_loss(losses, mask, mode, loss_weight=weight)
        (gradient,) = torch.autograd.grad(loss, losses)
        assert loss.isfinite()
        assert gradient[mask == 0].tolist() == [0, 0, 0, 0]
        assert gradient[mask == 1].abs().min() > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_a_token_has_loss_0_and_gradient_0(mode: str) -> None:
    losses = torch.full((2, 3), float("inf"), requires_grad=True)
    loss = agg_loss(losses, torch.zeros(2, 3), mode)
    (gradient,) = torch.autograd.grad(loss, losses)
    assert (loss.item(), float(gradient.abs().sum())) == (0, 0)
    assert loss_weights(torch.zeros(2, 3), mode).abs().sum() == 0
    assert row_loss_weights(torch.zeros(0), mode, None, 3).shape == (0,)


def test_trajectories_are_counted_not_sequences() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    weights = loss_weights(mask, "seq-mean-token-mean", ["a", "a", "b"])
    torch.testing.assert_close(weights, torch.tensor([[1 / 6, 1 / 6, 0], [1 / 6, 0, 0], [1 / 6, 1 / 6, 1 / 6]]))
    weights = loss_weights(mask, "seq-mean-token-sum", ["a", "a", "b"])
    torch.testing.assert_close(weights, 0.5 * mask)


def test_worked_numbers() -> None:
    losses = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    assert [float(agg_loss(losses, mask, mode)) for mode in MODES] == pytest.approx([2.75, 11, 5.5, 3.5, 1.375])
    assert float(agg_loss(losses, mask, "token-mean", dp_size=2, batch_num_tokens=8)) == pytest.approx(2.75)


def test_what_does_not_fit_is_refused() -> None:
    ones = torch.ones(2, 3)
    with pytest.raises(BadInputError, match="must be one of token-mean, token-sum"):
        agg_loss(ones, ones, "sequence-mean")
    with pytest.raises(BadInputError, match="must be one of token-mean, token-sum"):
        loss_weights(ones, "sequence-mean")
    with pytest.raises(BadInputError, match="1 keys for 2 rows"):
        loss_weights(ones, "seq-mean-token-sum", ["a"])
    with pytest.raises(BadInputError, match="positive loss_scale_factor, got None"):
        row_loss_weights(torch.ones(2), "seq-mean-token-sum-norm")
