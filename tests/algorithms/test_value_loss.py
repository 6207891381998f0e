"""The critic's loss: its clip, what the mask keeps out, and that cutting a batch changes nothing."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms import compute_entropy_loss, compute_kl_loss, compute_value_loss, loss_weights
from agentverl.algorithms.aggregation import MODES

SCALE = 5.0


def columns(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Predictions, returns, old values and a mask (B, T), some rows without a token."""
    random = torch.Generator().manual_seed(seed)
    rows, width = (int(torch.randint(1, 6, (), generator=random)) for _ in range(2))
    mask = (torch.rand(rows, width, generator=random) < 0.7).long()
    vpreds, returns, values = (torch.randn(rows, width, generator=random, dtype=torch.float64) for _ in range(3))
    return vpreds, returns, values, mask


@pytest.mark.parametrize(("vpred", "loss", "clipped"), [(1.0, 2.0, 0), (3.0, 2.0, 1), (-9.0, 72.0, 0)])
def test_the_clip_only_ever_makes_it_worse(vpred: float, loss: float, clipped: float) -> None:
    one = torch.ones(1, 1)
    found, fraction = compute_value_loss(vpred * one, 3 * one, 0.5 * one, one, cliprange_value=0.5)
    assert (found.item(), float(fraction)) == pytest.approx((loss, clipped))


@given(seed=st.integers(0, 2**32 - 1), mode=st.sampled_from(MODES))
def test_micro_batches_of_values_kl_and_entropy_add_up(seed: int, mode: str) -> None:
    vpreds, returns, values, mask = columns(seed)
    weights = loss_weights(mask, mode, None, SCALE).double()
    logits = torch.stack((vpreds, returns, values), dim=-1)

    def losses(rows: slice) -> Tensor:
        parts, info = [column[rows] for column in (vpreds, returns, values, mask)], {"loss_weight": weights[rows]}
        value, _ = compute_value_loss(*parts, cliprange_value=0.3, **info)
        kl = compute_kl_loss(vpreds[rows], returns[rows], mask[rows], "low_var_kl", mode, **info)
        return torch.stack((value, kl, compute_entropy_loss(logits[rows], mask[rows], mode, **info)))

    parts = torch.stack([losses(slice(row, row + 1)) for row in range(len(mask))])
    torch.testing.assert_close(parts.sum(dim=0), losses(slice(None)))
    whole, _ = compute_value_loss(vpreds, returns, values, mask, 0.3, mode, loss_scale_factor=SCALE)
    torch.testing.assert_close(losses(slice(None))[0], whole, rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 2**32 - 1), fill=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nothing_under_the_mask_counts(seed: int, fill: float) -> None:
    *given_columns, mask = columns(seed)
    vpreds, returns, values = (torch.where(mask != 0, column, fill) for column in given_columns)
    vpreds.requires_grad_()
    loss, clipped = compute_value_loss(vpreds, returns, values, mask, 0.3, "seq-mean-token-mean")
    (gradient,) = torch.autograd.grad(loss, vpreds)
    expected, _ = compute_value_loss(*given_columns, mask, 0.3, "seq-mean-token-mean")
    torch.testing.assert_close(loss.detach(), expected)
    assert torch.isfinite(gradient).all()
    assert gradient[mask == 0].abs().sum() == 0
    assert math.isfinite(float(clipped))
    if not mask.any():
        assert float(expected) == 0
