"""Entropies and log-probabilities of any logits, entries that cannot be chosen included."""

import math

import pytest
import torch

from agentverl.algorithms.distributions import (
    compute_entropy_loss,
    entropy_from_logits,
    entropy_from_logits_with_chunking,
    logprobs_from_logits,
)


def test_entries_that_cannot_be_chosen_have_no_share() -> None:
    logits = torch.tensor([[0.0, 0.0, -float("inf")]], requires_grad=True)
    entropy = entropy_from_logits(logits)
    assert entropy.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert gradient.isfinite().all()


def test_chunks_change_nothing() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entropy_from_logits_with_chunking(logits, chunk_size=2), entropy_from_logits(logits))
    expected = torch.log_softmax(logits, dim=-1)[torch.arange(5), torch.arange(5)]
    torch.testing.assert_close(logprobs_from_logits(logits, torch.arange(5)), expected)


def test_masked_logits_do_not_reach_the_entropy_loss() -> None:
    logits = torch.tensor([[[0.0, 0.0], [float("nan"), 1.0]]], requires_grad=True)
    loss = compute_entropy_loss(logits, torch.tensor([[1, 0]]))
    assert loss.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, 1].tolist() == [0, 0]
