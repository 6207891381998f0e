"""What holds for every policy loss: the mask is a wall, and how a batch is laid out or cut changes nothing."""

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentverl.algorithms.aggregation import loss_weights
from agentverl.algorithms.loss_config import LossConfig
from agentverl.algorithms.registry import get_policy_loss_fn, policy_losses

CORRECTION = {
    "rollout_is": "token",
    "rollout_is_threshold": "0.5_2.0",
    "rollout_is_batch_normalize": False,
    "rollout_rs": "token_k1",
    "rollout_rs_threshold": 2.0,
    "loss_type": "reinforce",
}
CONFIG: dict[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "policy_loss": {
        # Every candidate is chosen, so that chance has no part.
        "clip_cov_ratio": 1.0,
        "clip_cov_lb": 0.1,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.3,
        "ppo_kl_coef": 0.1,
        "dro_beta": 0.2,
        "rollout_correction": CORRECTION,
    },
}
LOSSES = policy_losses.names()
CHOOSING = {"clip_cov", "kl_cov"}
"""Losses that choose tokens among those of a micro-batch."""
BY_ROW = {"gspo", "geo_mean"}
"""Losses whose ratio belongs to a row."""
FILLS = [float("nan"), float("inf"), -float("inf"), 1e30]

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20)


class Batch:
    """Random columns (B, T) in float64, some rows without a token; the weights are those of the whole batch."""

    def __init__(self, seed: int, mask: Tensor | None = None) -> None:
        random = torch.Generator().manual_seed(seed)
        rows, width = (int(torch.randint(1, 6, (), generator=random)) for _ in range(2))
        self.mask = (torch.rand(rows, width, generator=random) < 0.7).long() if mask is None else mask
        shape = self.mask.shape
        self.old = -torch.rand(shape, generator=random, dtype=torch.float64) * 2
        self.log_prob = self.old + torch.randn(shape, generator=random, dtype=torch.float64) * 0.4
        self.advantages = torch.randn(shape, generator=random, dtype=torch.float64)
        self.is_weights = torch.rand(shape, generator=random, dtype=torch.float64) + 0.5
        self.weights = loss_weights(self.mask, "seq-mean-token-mean").double()

    def taken(self, rows: Any) -> "Batch":
        """Some rows, with the weights they have."""
        other = object.__new__(Batch)
        for name, value in vars(self).items():
            setattr(other, name, value[rows])
        return other

    def padded(self) -> "Batch":
        other = object.__new__(Batch)
        for name, value in vars(self).items():
            setattr(other, name, torch.nn.functional.pad(value, (0, 2, 0, 1)))
        return other

    def filled(self, fill: float) -> "Batch":
        """The same with something else under the mask."""
        other = self.taken(slice(None))
        for name in ("old", "log_prob", "advantages", "is_weights"):
            setattr(other, name, torch.where(self.mask != 0, getattr(self, name), fill))
        return other


def answer(
    loss: str, batch: Batch, dp_size: int = 1, *, weighted: bool = True
) -> tuple[Tensor, dict[str, float], Tensor]:
    """Loss, metrics and gradient."""
    log_prob = batch.log_prob.clone().requires_grad_()
    info = {"loss_weight": batch.weights, "dp_size": dp_size} if weighted else {}
    value, metrics = get_policy_loss_fn(loss)(
        old_log_prob=batch.old,
        log_prob=log_prob,
        advantages=batch.advantages,
        response_mask=batch.mask,
        loss_agg_mode="seq-mean-token-mean",
        config=LossConfig(CONFIG, info),
        rollout_is_weights=batch.is_weights,
    )
    return value.detach(), metrics, torch.autograd.grad(value, log_prob)[0]


def close(one: Tensor | float, other: Tensor | float) -> None:
    torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-6, atol=1e-9, check_dtype=False)


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=seeds, fill=st.sampled_from(FILLS), weighted=st.booleans())
@few
def test_nothing_under_the_mask_reaches_loss_metrics_or_gradient(
    loss: str, seed: int, fill: float, weighted: bool
) -> None:
    batch = Batch(seed)
    clean, dirty = (answer(loss, some, weighted=weighted) for some in (batch.filled(0.0), batch.filled(fill)))
    close(clean[0], dirty[0])
    assert clean[1] == dirty[1]
    close(clean[2], dirty[2])
    assert torch.isfinite(dirty[2]).all()
    assert dirty[2][batch.mask == 0].abs().sum() == 0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weighted", [True, False])
def test_a_batch_without_a_token_has_loss_0_and_gradient_0(loss: str, weighted: bool) -> None:
    batch = Batch(0, mask=torch.zeros(2, 3, dtype=torch.long)).filled(float("nan"))
    value, metrics, gradient = answer(loss, batch, weighted=weighted)
    assert (float(value), float(gradient.abs().sum())) == (0, 0)
    assert set(metrics.values()) <= {0.0}


@pytest.mark.parametrize("loss", LOSSES)
@given(seed=seeds, random=st.randoms(use_true_random=False))
@few
def test_the_order_of_rows_and_padding_change_nothing(loss: str, seed: int, random: Random) -> None:
    batch = Batch(seed)
    value, metrics, gradient = answer(loss, batch)
    order = list(range(len(batch.mask)))
    random.shuffle(order)
    other_value, other_metrics, other_gradient = answer(loss, batch.taken(order))
    close(value, other_value)
    close(gradient[order], other_gradient)
    assert other_metrics == pytest.approx(metrics, rel=1e-5, abs=1e-7)
    wide_value, _, wide_gradient = answer(loss, batch.padded())
    close(value, wide_value)
    close(gradient, wide_gradient[: len(order), : batch.mask.shape[1]])


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - CHOOSING))
@given(seed=seeds)
@few
def test_micro_batches_and_ranks_change_nothing(loss: str, seed: int) -> None:
    batch = Batch(seed)
    value, _, gradient = answer(loss, batch)
    rows = range(len(batch.mask))
    parts = [answer(loss, batch.taken([row])) for row in rows]
    close(sum(part[0] for part in parts), value)
    close(torch.cat([part[2] for part in parts]), gradient)
    ranks = [list(rows)[0::2], list(rows)[1::2]]
    averaged = sum(answer(loss, batch.taken(rank), dp_size=2)[0] for rank in ranks if rank) / 2
    close(averaged, value)


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - CHOOSING - BY_ROW))
@given(seed=seeds, data=st.data())
@few
def test_a_trajectory_split_into_rows_changes_nothing(loss: str, seed: int, data: st.DataObject) -> None:
    batch = Batch(seed)
    cut = data.draw(st.integers(0, batch.mask.shape[1]))
    halves = batch.taken(list(range(len(batch.mask))) * 2)
    halves.mask = halves.mask.clone()
    halves.mask[: len(batch.mask), cut:] = 0
    halves.mask[len(batch.mask) :, :cut] = 0
    index = list(range(len(batch.mask))) * 2
    halves.weights = loss_weights(halves.mask, "seq-mean-token-mean", trajectory_index=index).double()
    close(answer(loss, halves)[0], answer(loss, batch)[0])
