"""Entropy by what a token belongs to: the sure tokens of a call's syntax hide that answers have become uniform."""

from collections.abc import Mapping

import torch

from agentverl.engines.base import LossFunction, ModelOutput
from agentverl.engines.metrics import Metric
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.token_classes import TOKEN_CLASSES


def with_entropy_by_class(loss_function: LossFunction) -> LossFunction:
    """The same loss, which also reports the mean entropy of each class as `actor/entropy/<class>`.

    Column: `token_class`; without it, or where no entropy is computed, nothing is added.
    """

    def loss(output: ModelOutput, micro_batch: DataProto) -> tuple[torch.Tensor, Mapping[str, float | Metric]]:
        value, metrics = loss_function(output, micro_batch)
        return value, {**metrics, **_by_class(output, micro_batch)}

    return loss


def _by_class(output: ModelOutput, micro_batch: DataProto) -> dict[str, Metric]:
    if output.entropy is None or "token_class" not in micro_batch.batch:
        return {}
    classes = micro_batch.batch.ragged("token_class").to_padded(-1)
    kept = micro_batch.batch.ragged("response_mask").to_padded() != 0
    entropy, found = output.entropy.detach(), {}
    for number, name in enumerate(TOKEN_CLASSES):
        members = entropy[kept & (classes == number)]
        mean = float(members.mean()) if len(members) else 0.0
        found[f"actor/entropy/{name}"] = Metric(mean, "mean", float(len(members)))
    return found
