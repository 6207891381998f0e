"""Rows without a gradient are left out, and nothing but time can tell."""

from typing import Any

import numpy as np
import pytest
import torch

from agentverl.algorithms.loss_config import LossConfig
from agentverl.algorithms.registry import get_policy_loss_fn
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.actor import ActorSettings
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker, PolicyRun
from agentverl.workers.silent_rows import SCALED_BY_ADVANTAGE, without_silent_rows

LENGTHS = [3, 5, 2, 4]


def batch(advantages: list[float], mask: int = 1) -> DataProto:
    """Four rows, each with one advantage for all its tokens; row 2 has none under the mask where `mask` is 0."""
    random = torch.Generator().manual_seed(0)
    responses = Ragged.from_lengths(torch.randint(3, 300, (sum(LENGTHS),), generator=random), LENGTHS)
    ones = torch.ones(sum(LENGTHS))
    bits = torch.ones(sum(LENGTHS), dtype=torch.long)
    bits[8:10] = mask
    columns = {
        "prompts": Ragged.from_list([[5, 6], [7], [8, 9, 10], [11]], torch.long),
        "responses": responses,
        "response_mask": responses.like(bits),
        "temperature": responses.like(ones),
        "advantages": responses.like(torch.tensor(advantages).repeat_interleave(torch.tensor(LENGTHS))),
        "loss_weight": responses.like(bits / bits.sum()),
    }
    return DataProto(Columns(columns), {"trajectory_id": np.array(["a", "b", "c", "d"], dtype=object)})


@pytest.mark.parametrize(
    ("advantages", "mask", "kept"),
    [
        ([0.5, 0.0, -1.0, 0.0], 1, [3, 2]),
        ([0.5, 0.0, -1.0, 0.0], 0, [3]),
        ([0.5, 1.0, -1.0, 2.0], 1, LENGTHS),
        ([0.0, 0.0, 0.0, 0.0], 1, [2]),
        ([0.0, 0.0, 0.0, 0.0], 0, [3]),
    ],
)
def test_rows_with_something_to_learn_from_stay_and_at_least_one(
    advantages: list[float], mask: int, kept: list[int]
) -> None:
    left = without_silent_rows(ActorSettings(), batch(advantages, mask))
    assert left.batch.ragged("responses").lengths.tolist() == kept


@pytest.mark.parametrize(
    "actor",
    [
        {"use_kl_loss": True},
        {"entropy_coeff": 0.1},
        {"calculate_entropy": True},
        {"policy_loss": {"loss_mode": "kl_cov"}},
    ],
)
def test_all_rows_stay_where_more_than_the_advantage_counts(actor: dict[str, Any]) -> None:
    data = batch([0.5, 0.0, -1.0, 0.0])
    assert without_silent_rows(ActorSettings.model_validate(actor), data) is data


def test_all_rows_stay_where_old_log_probs_are_compared() -> None:
    data = batch([0.5, 0.0, -1.0, 0.0])
    data.batch["old_log_probs"] = data.batch.ragged("advantages").clone()
    assert without_silent_rows(ActorSettings(), data) is data


@pytest.mark.parametrize("loss", sorted(SCALED_BY_ADVANTAGE))
def test_a_row_without_an_advantage_has_no_part_in_such_a_loss(loss: str) -> None:
    log_prob = torch.tensor([[-0.5, -1.0], [-2.0, -0.1]], requires_grad=True)
    settings = ActorSettings.model_validate({"policy_loss": {"loss_mode": loss}})

    def answer(rows: slice) -> tuple[torch.Tensor, dict[str, float]]:
        value, metrics = get_policy_loss_fn(loss)(
            old_log_prob=log_prob[rows].detach(),
            log_prob=log_prob[rows],
            advantages=torch.tensor([[1.0, -2.0], [0.0, 0.0]])[rows],
            response_mask=torch.ones(2, 2)[rows],
            config=LossConfig(settings, {"loss_weight": torch.full((2, 2), 0.25)[rows]}),
        )
        return torch.autograd.grad(value, log_prob)[0], metrics

    (both, metrics), (one, metrics_of_one) = answer(slice(0, 2)), answer(slice(0, 1))
    torch.testing.assert_close(both, one)
    assert metrics == pytest.approx(metrics_of_one)


@pytest.mark.parametrize("advantages", [[0.5, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
def test_updates_and_metrics_are_the_same_without_them(advantages: list[float]) -> None:
    outcomes = []
    for calculate_entropy in (False, True):  # which keeps all rows and changes nothing else
        actor = {"fsdp_config": {"dtype": "float32"}, "optim": {"lr": 1e-3}, "calculate_entropy": calculate_entropy}
        settings = {"model": {"path": "nano", "enable_gradient_checkpointing": False}, "actor": actor}
        worker = ActorRolloutRefWorker(ActorRolloutRefSettings.model_validate(settings), PolicyRun())
        worker.init_model()
        metrics = [worker.update_actor(batch(values)) for values in ([1.0, -1.0, 0.5, 2.0], advantages)]
        outcomes.append((metrics, dict(worker.actor.get_per_tensor_param())))
    (metrics, weights), (other_metrics, other_weights) = outcomes
    for mine, other in zip(metrics, other_metrics, strict=True):
        assert mine == pytest.approx({name: other[name] for name in mine}, rel=1e-4, abs=1e-7)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, other_weights[name], rtol=1e-4, atol=2e-5)
