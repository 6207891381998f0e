"""From scores to advantages: rewards with their KL penalty, groups, and who counts in them."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.on_end import EndSettings

TokenEstimator = Callable[[torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]
"""(token_level_rewards [U,T], response_mask [U,T], index [U]) -> (advantages [U,T], returns [U,T])."""


def apply_end_policies(batch: DataProto, policies: Mapping[str, EndSettings]) -> None:
    """Where its ending says so, give a trajectory the stated score and take the loss off its tokens."""
    scores, mask = batch.batch.ragged("token_level_scores"), batch.batch.ragged("response_mask")
    for row, termination in enumerate(batch.non_tensor_batch["termination"]):
        policy = policies.get(str(termination), EndSettings())
        tokens = slice(int(scores.offsets[row]), int(scores.offsets[row + 1]))
        if policy.score is not None:
            scored = scores.values[tokens].nonzero()
            last_policy_token = mask.values[tokens].nonzero()
            scores.values[tokens] = 0.0
            if len(last_policy_token) and (len(scored) or _is_last_sequence(batch, row)):
                scores.values[tokens.start + int(last_policy_token[-1])] = policy.score
        if not policy.loss:
            mask.values[tokens] = 0


def _is_last_sequence(batch: DataProto, row: int) -> bool:
    ids, order = batch.non_tensor_batch["trajectory_id"], batch.non_tensor_batch["sequence_index"]
    return bool(order[row] == max(order[other] for other in range(len(batch)) if ids[other] == ids[row]))


def group_index(batch: DataProto, policies: Mapping[str, EndSettings]) -> list[str]:
    """The group of each sequence, (uid, role); a trajectory kept out of the baseline stands alone."""
    fields = batch.non_tensor_batch
    groups = []
    for uid, role, trajectory, termination in zip(
        fields["uid"], fields["role"], fields["trajectory_id"], fields["termination"], strict=True
    ):
        alone = not policies.get(str(termination), EndSettings()).baseline
        groups.append(f"{uid}\x1f{role}" + (f"\x1f{trajectory}" if alone else ""))
    return groups


def assign_advantages(batch: DataProto, estimator: TokenEstimator, groups: list[str]) -> None:
    """Add `advantages` and `returns` to the batch.

    The sequences of one trajectory and role are joined in order before the estimator sees them, so that splitting a
    trajectory changes no group statistic, and estimators that run along time pass from one sequence to the next.
    """
    rewards, mask = batch.batch.ragged("token_level_rewards"), batch.batch.ragged("response_mask")
    units = _units(batch)
    joined_rewards = _join(rewards, units)
    joined_mask = _join(mask, units)
    index = np.array([groups[members[0]] for members in units], dtype=object)
    advantages, returns = estimator(joined_rewards.to_padded(), joined_mask.to_padded(), index)
    for name, padded in (("advantages", advantages), ("returns", returns)):
        batch.batch[name] = _split(padded, units, rewards)


def _units(batch: DataProto) -> list[list[int]]:
    """Rows of each (trajectory, role), its sequences in order."""
    fields = batch.non_tensor_batch
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, key in enumerate(zip(fields["trajectory_id"], fields["role"], strict=True)):
        members[key].append(row)
    return [sorted(rows, key=lambda row: fields["sequence_index"][row]) for rows in members.values()]


def _join(column: Ragged, units: list[list[int]]) -> Ragged:
    return Ragged.from_list([torch.cat([column[row] for row in members]) for members in units], column.values.dtype)


def _split(padded: torch.Tensor, units: list[list[int]], like: Ragged) -> Ragged:
    rows: list[torch.Tensor] = [like.values[:0]] * len(like)
    lengths = like.lengths.tolist()
    for unit, members in enumerate(units):
        start = 0
        for row in members:
            rows[row] = padded[unit, start : start + lengths[row]]
            start += lengths[row]
    return Ragged.from_list(rows, padded.dtype)
