"""Sequences that cannot change the policy's gradient, which an update need not send through the model."""

import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.actor import ActorSettings

SCALED_BY_ADVANTAGE = frozenset({"vanilla", "cispo", "dppo_kl", "dppo_tv", "geo_mean", "gpg", "gspo", "sapo"})
"""Losses that are the advantage times something, for each token."""


def without_silent_rows(config: ActorSettings, data: DataProto) -> DataProto:
    """The rows (B) of a mini-batch with a token whose advantage and loss weight are not 0; never none.

    Where all samples of a prompt earn the same, the group-relative advantage is 0 and so is the gradient. The rows stay
    where a term of the loss or a metric looks at their log-probabilities all the same.

    Columns: `advantages`, `loss_weight`, `response_mask`.
    """
    if not len(data) or not _only_advantages_count(config, data):
        return data
    mask = data.batch.ragged("response_mask")
    weight = data.batch.ragged("loss_weight").values * mask.values
    speaking = mask.like(data.batch.ragged("advantages").values * weight != 0)
    kept = _count(speaking).nonzero().flatten()
    if len(kept) == len(data):
        return data
    if not len(kept):
        # With a gradient of 0 the optimiser still takes its step: momentum and weight decay go on.
        kept = torch.where(_count(mask) > 0, mask.lengths, mask.lengths.max() + 1).argmin()[None]
    return data.select_idxs(kept)


def _count(column: Ragged) -> torch.Tensor:
    """(B) entries of each row that are not 0."""
    return torch.zeros_like(column.lengths).index_add_(0, column.row_index, (column.values != 0).long())


def _only_advantages_count(config: ActorSettings, data: DataProto) -> bool:
    if config.use_kl_loss or config.entropy_coeff != 0 or config.calculate_entropy:
        return False
    return config.policy_loss.loss_mode in SCALED_BY_ADVANTAGE and "old_log_probs" not in data.batch
