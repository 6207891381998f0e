"""What counts before advantages are estimated: endings, void turns, groups and who is in them, greedy baselines."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.batching import assemble
from agentverl.rollout.episode import Group
from agentverl.settings.on_end import EndSettings

VoidTurns = Literal["train", "mask_turn", "mask_trajectory"]


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


def apply_void_turns(batch: DataProto, policy: VoidTurns) -> float:
    """Take the loss off turns without a valid call or an answer, or off all of their trajectory; returns their share.

    A score that stood on a token without loss moves to the policy's last token before it, so that it is not lost where
    rewards are summed up over the policy's tokens only. After SimpleTIR (arXiv:2509.02479), which drops trajectories.
    """
    scores, mask = batch.batch.ragged("token_level_scores"), batch.batch.ragged("response_mask")
    fields = batch.non_tensor_batch
    void = {
        trajectory for trajectory, spans in zip(fields["trajectory_id"], fields["void_spans"], strict=True) if spans
    }
    for row, spans in enumerate(fields["void_spans"]):
        begin, end = int(scores.offsets[row]), int(scores.offsets[row + 1])
        if policy == "mask_trajectory" and fields["trajectory_id"][row] in void:
            mask.values[begin:end] = 0
        elif policy == "mask_turn":
            for start, stop in spans:
                mask.values[begin + start : begin + stop] = 0
            _move_to_policy_tokens(scores.values[begin:end], mask.values[begin:end])
    return len(void) / max(len(set(fields["trajectory_id"])), 1)


def _move_to_policy_tokens(scores: torch.Tensor, mask: torch.Tensor) -> None:
    """Move each score (T) under mask 0 to the last unmasked token before it, or to the first after it."""
    places = mask.nonzero().flatten()
    for position in ((scores != 0) & (mask == 0)).nonzero().flatten().tolist() if len(places) else []:
        before = places[places < position]
        scores[before[-1] if len(before) else places[0]] += scores[position]
        scores[position] = 0.0


def set_reward_baselines(batch: DataProto, greedy: Mapping[str, Group], policies: Mapping[str, EndSettings]) -> None:
    """Add the field `reward_baselines`: what the greedy sample of each row's prompt earned, in the main role.

    Args:
        greedy: a group of one by the uid of the prompt.
    """
    earned = {}
    for uid, group in greedy.items():
        sample = assemble([group])
        apply_end_policies(sample, policies)
        is_main = torch.tensor([role == "main" for role in sample.non_tensor_batch["role"]])
        scores = sample.batch.ragged("token_level_scores")
        earned[uid] = float(scores.values[is_main[scores.row_index]].sum())
    baselines = [earned[uid] for uid in batch.non_tensor_batch["uid"]]
    batch.non_tensor_batch["reward_baselines"] = np.array(baselines, dtype=object)
