"""What a critic minimises: the clipped value loss of a micro-batch whose tokens bring their weight in the whole."""

import torch

from agentverl.algorithms.value_loss import compute_value_loss
from agentverl.engines.base import ModelOutput
from agentverl.engines.metrics import Metric
from agentverl.errors import BadInputError
from agentverl.protocol.data_proto import DataProto


def value_loss(
    cliprange_value: float, output: ModelOutput, micro_batch: DataProto
) -> tuple[torch.Tensor, dict[str, float | Metric]]:
    """Half of the weighted squared error, with verl's metrics.

    Columns: `response_mask`, `returns`, `values` (what they were when the step began), `loss_weight`.

    Raises:
        BadInputError: the model has no value head.
    """
    if output.values is None:
        raise BadInputError("a value loss needs a model with a value head")
    returns, values, mask, weight = (
        micro_batch.batch.ragged(name).to_padded() for name in ("returns", "values", "response_mask", "loss_weight")
    )
    loss, clipped = compute_value_loss(output.values, returns, values, mask, cliprange_value, loss_weight=weight)
    tokens = float(mask.sum())
    mean = float((output.values.detach() * mask).sum()) / max(tokens, 1.0)
    return loss, {
        "critic/vf_loss": Metric(float(loss.detach()), "sum"),
        "critic/vf_clipfrac": Metric(float(clipped), "mean", tokens),
        "critic/vpred_mean": Metric(mean, "mean", tokens),
    }
