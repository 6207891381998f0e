"""The loss of the critic."""

from typing import Any

import torch
from torch import Tensor

from agentverl.algorithms.aggregation import agg_loss
from agentverl.algorithms.masked import masked_mean, zero_masked


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    **global_batch_info: Any,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped value loss: half of max((v - R)^2, (clip(v, V - c, V + c) - R)^2), all (B, T).

    Returns:
        the loss, aggregated by `agg_loss`, and the share of tokens where the clip binds.
    """
    vpreds, returns, values = (zero_masked(column, response_mask) for column in (vpreds, returns, values))
    clipped_vpreds = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
    unclipped = (vpreds - returns) ** 2
    clipped = (clipped_vpreds - returns) ** 2
    loss = 0.5 * agg_loss(torch.maximum(unclipped, clipped), response_mask, loss_agg_mode, **global_batch_info)
    return loss, masked_mean((clipped > unclipped).float().detach(), response_mask)
