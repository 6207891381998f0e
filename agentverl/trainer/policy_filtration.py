"""PF-PPO: trajectories to learn from, drawn by their scores (arXiv:2409.06957)."""

import numpy as np
import torch

from agentverl.algorithms.policy_filtration import pf_ppo_draws
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.grouping import rows_by
from agentverl.settings.algorithm import PFPPOSettings
from agentverl.settings.seeds import derive_seed


def filtered(batch: DataProto, settings: PFPPOSettings, seed: int, step: int) -> DataProto:
    """As many trajectories as the batch has, drawn with replacement; what is drawn twice counts twice.

    Advantages are those of the whole batch. Copies have a `trajectory_id` of their own, so that each is weighted.
    """
    rows_of = rows_by(batch.non_tensor_batch["trajectory_id"])
    order = list(rows_of)
    scores = batch.batch.ragged("token_level_scores")
    earned = torch.tensor([sum(float(scores[row].sum()) for row in rows_of[trajectory]) for trajectory in order])
    chance = torch.Generator().manual_seed(derive_seed(seed, "pf_ppo", step))
    drawn = pf_ppo_draws(earned, settings.reweight_method, settings.weight_pow, chance)
    picked = [(order[number], copy) for copy, number in enumerate(sorted(drawn.tolist()))]
    learnt = batch.select_idxs([row for trajectory, _ in picked for row in rows_of[trajectory]])
    names = [f"{trajectory}#{copy}" for trajectory, copy in picked for _ in rows_of[trajectory]]
    learnt.non_tensor_batch["trajectory_id"] = np.array(names, dtype=object)
    return learnt
