"""Entropy is told apart by token class, over unmasked tokens only."""

import pytest
import torch

from agentverl.engines.base import ModelOutput
from agentverl.engines.metrics import Metric, MetricAccumulator
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.workers.entropy_classes import with_entropy_by_class


def no_loss(output: ModelOutput, micro_batch: DataProto) -> tuple[torch.Tensor, dict[str, float | Metric]]:
    return output.log_probs.sum(), {"loss": 1.0}


def batch(classes: list[list[int]], mask: list[list[int]]) -> DataProto:
    return DataProto(
        Columns(
            {
                "token_class": Ragged.from_list(classes, torch.int64),
                "response_mask": Ragged.from_list(mask, torch.int64),
            }
        )
    )


def test_means_are_over_all_micro_batches_tokens() -> None:
    loss, collected = with_entropy_by_class(no_loss), MetricAccumulator()
    first = ModelOutput(torch.zeros(2, 3), torch.tensor([[1.0, 3.0, 9.0], [0.5, 0.0, 0.0]]))
    collected.add(loss(first, batch([[0, 0, -1], [1]], [[1, 1, 0], [1]]))[1])
    second = ModelOutput(torch.zeros(1, 2), torch.tensor([[5.0, 7.0]]))
    collected.add(loss(second, batch([[0, 3]], [[1, 1]]))[1])
    assert collected.result() == {
        "loss": 1.0,
        "actor/entropy/reasoning": pytest.approx(3.0),
        "actor/entropy/call_syntax": 0.5,
        "actor/entropy/answer": 7.0,
    }


def test_without_entropy_nothing_is_added() -> None:
    metrics = with_entropy_by_class(no_loss)(ModelOutput(torch.zeros(1, 1)), batch([[0]], [[1]]))[1]
    assert metrics == {"loss": 1.0}
