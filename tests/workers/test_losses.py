"""Losses of micro-batches against losses of whole batches written out."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agentverl.algorithms.aggregation import agg_loss
from agentverl.engines.base import ModelOutput
from agentverl.engines.metrics import Metric, MetricAccumulator
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.actor import ActorSettings
from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.workers.losses import loss_weight, ppo_loss, sft_loss

LENGTHS = [4, 7, 0, 3]


def batch(with_old: bool = True) -> tuple[DataProto, ModelOutput]:
    random = torch.Generator().manual_seed(3)
    total = sum(LENGTHS)

    def column(values: torch.Tensor) -> Ragged:
        return Ragged.from_lengths(values, LENGTHS)

    def draw() -> torch.Tensor:
        return torch.rand(total, generator=random)

    mask = (draw() < 0.7).long()
    columns = {
        "response_mask": column(mask),
        "advantages": column(draw() - 0.5),
        "ref_log_prob": column(-draw()),
        "old_log_probs": column(-2 * draw()),
    }
    if not with_old:
        del columns["old_log_probs"]
    data = DataProto(Columns(columns), {"trajectory_id": np.array(["a", "b", "b", "c"], dtype=object)})
    data.batch["loss_weight"] = loss_weight(data, "token-mean")
    log_probs = (-2 * column(draw()).to_padded()).requires_grad_()
    entropy = column(draw()).to_padded().requires_grad_()
    return data, ModelOutput(log_probs, entropy)


def test_the_ppo_loss_is_that_of_the_formula() -> None:
    data, output = batch()
    config = ActorSettings(entropy_coeff=0.1, use_kl_loss=True, kl_loss_coef=0.2, kl_loss_type="k1")
    loss, metrics = ppo_loss(config, output, data)
    mask = data.batch.ragged("response_mask").to_padded()
    old, advantages, reference = (
        data.batch.ragged(name).to_padded() for name in ("old_log_probs", "advantages", "ref_log_prob")
    )
    ratio = torch.exp(output.log_probs - old)
    clipped = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    clipped = torch.where(advantages < 0, torch.minimum(clipped, -advantages * 3.0), clipped)
    assert output.entropy is not None
    per_token = clipped - 0.1 * output.entropy + 0.2 * (output.log_probs - reference)
    expected = agg_loss(per_token, mask, "token-mean")
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    found = MetricAccumulator()
    found.add(metrics)
    assert found.result()["actor/loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert {"actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/entropy", "actor/kl_loss"} <= metrics.keys()


def test_without_old_log_probs_the_ratio_is_one_and_its_gradient_that_of_the_policy() -> None:
    data, output = batch(with_old=False)
    loss, metrics = ppo_loss(ActorSettings(), output, data)
    torch.autograd.backward(loss)
    weight, advantages = (data.batch.ragged(name).to_padded() for name in ("loss_weight", "advantages"))
    assert output.log_probs.grad is not None
    torch.testing.assert_close(output.log_probs.grad, -weight * advantages)
    clipped = metrics["actor/pg_clipfrac"]
    assert isinstance(clipped, Metric)
    assert clipped.value == 0


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo", "sapo", "geo_mean"])
def test_losses_and_metrics_of_micro_batches_add_up(mode: str, loss_mode: str) -> None:
    config = ActorSettings.model_validate(
        {"calculate_entropy": True, "loss_agg_mode": mode, "policy_loss": {"loss_mode": loss_mode}}
    )
    data, output = batch()
    data.batch["loss_weight"] = loss_weight(data, config.weight_mode)
    assert_parts_add_up(partial(ppo_loss, config), data, output)


def test_a_loss_that_draws_draws_the_same_whenever_a_step_is_repeated() -> None:
    settings = {"clip_cov_ratio": 0.2, "clip_cov_lb": -9, "clip_cov_ub": 9, "loss_mode": "clip_cov"}
    config = ActorSettings.model_validate({"policy_loss": settings, "clip_ratio": 9})

    def drawn(step: int) -> list[bool]:
        data, output = batch()
        data.meta_info["global_steps"] = step
        loss, _ = ppo_loss(config, output, data)
        gradient = torch.autograd.grad(loss, output.log_probs)[0]
        return (gradient == 0).flatten().tolist()

    torch.manual_seed(0)
    first = drawn(1)
    assert drawn(1) == first
    assert any(drawn(step) != first for step in range(2, 6))


def test_in_bypass_mode_the_losses_of_micro_batches_add_up_and_rejected_tokens_stay_counted() -> None:
    data, output = batch()
    correction = RolloutCorrectionSettings(
        bypass_mode=True,
        loss_type="reinforce",
        rollout_is="token",
        rollout_is_threshold="1.5",
        rollout_rs="token_k1",
        rollout_rs_threshold="0.5_2.0",
    )
    loss_of = partial(ppo_loss, ActorSettings(), correction=correction)
    found = assert_parts_add_up(loss_of, data, output, metrics=False)
    mask, old, advantages, weight = (
        data.batch.ragged(name).to_padded() for name in ("response_mask", "old_log_probs", "advantages", "loss_weight")
    )
    ratio = torch.exp(output.log_probs.detach() - old)
    kept = mask * (ratio >= 0.5) * (ratio <= 2)
    assert 0 < kept.sum() < mask.sum()
    expected = -(weight * kept * advantages * ratio.clamp(max=1.5) * output.log_probs.detach()).sum()
    assert found["actor/pg_loss"] == pytest.approx(float(expected), rel=1e-5)
    rejected = 1 - float(kept.sum() / mask.sum())
    assert found["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(rejected)


def assert_parts_add_up(
    loss_of: Callable[..., tuple[torch.Tensor, Any]], data: DataProto, output: ModelOutput, *, metrics: bool = True
) -> dict[str, float]:
    """Losses, and metrics unless told otherwise; the metrics of the whole."""
    whole, parts = MetricAccumulator(), MetricAccumulator()
    loss, of_whole = loss_of(output, data)
    whole.add(of_whole)
    total = torch.zeros(())
    for rows in ([3, 0], [1], [2]):
        width = max(LENGTHS[row] for row in rows)
        assert output.entropy is not None
        part = ModelOutput(output.log_probs[rows, :width], output.entropy[rows, :width])
        part_loss, of_part = loss_of(part, data.select_idxs(rows))
        parts.add(of_part)
        total = total + part_loss
    assert float(total.detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
    if metrics:
        assert parts.result() == pytest.approx(whole.result(), rel=1e-5)
    return whole.result()


def test_a_split_trajectory_weighs_as_much_as_a_whole_one() -> None:
    mask = [1, 0, 1, 1, 1, 0, 1]

    def weights(lengths: list[int], trajectories: list[str]) -> torch.Tensor:
        responses = Ragged.from_lengths(torch.tensor(mask), lengths)
        data = DataProto(Columns({"response_mask": responses}), {"trajectory_id": np.array(trajectories, dtype=object)})
        return loss_weight(data, "seq-mean-token-mean").values

    assert torch.equal(weights([2, 3, 2], ["a", "a", "b"]), weights([5, 2], ["a", "b"]))


def test_the_sft_loss_is_the_mean_over_learnt_tokens() -> None:
    data, output = batch()
    loss, metrics = sft_loss(output, data)
    mask = data.batch.ragged("response_mask").to_padded()
    assert float(loss.detach()) == pytest.approx(
        float(-(output.log_probs.detach() * mask).sum() / mask.sum()), rel=1e-6
    )
    assert metrics["tokens"] == Metric(float(mask.sum()), "sum")


def test_the_distance_from_the_server_is_measured_where_the_current_weights_sampled() -> None:
    data, output = batch(with_old=False)
    mask = data.batch.ragged("response_mask").to_padded().bool()
    shifted = torch.where(mask, output.log_probs.detach() - 0.5, torch.tensor(float("nan")))
    data.batch["rollout_log_probs"] = Ragged.from_padded(shifted, LENGTHS)
    _, metrics = ppo_loss(ActorSettings(), output, data)
    collected = MetricAccumulator()
    collected.add(metrics)
    distance = (output.log_probs.detach().exp() * (1 - math.exp(-0.5)))[mask]
    assert collected.result()["training/rollout_probs_diff_mean"] == pytest.approx(float(distance.mean()))
    assert collected.result()["training/rollout_probs_diff_max"] == pytest.approx(float(distance.max()))
    with_old, _ = batch()
    with_old.batch["rollout_log_probs"] = data.batch.ragged("rollout_log_probs")
    assert "training/rollout_probs_diff_mean" not in ppo_loss(ActorSettings(), output, with_old)[1]
