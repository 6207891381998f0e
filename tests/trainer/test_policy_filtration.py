"""Trajectories are drawn by their scores, with all their sequences and their own advantages."""

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.algorithm import PFPPOSettings
from agentverl.trainer.policy_filtration import filtered


def batch_of(scores: dict[str, list[list[float]]]) -> DataProto:
    """Trajectories by id, each with the token scores of its sequences; advantages are ten times the scores."""
    rows = [(name, sequence) for name, sequences in scores.items() for sequence in sequences]
    column = Ragged.from_list([torch.tensor(sequence) for _, sequence in rows])
    return DataProto.from_dict(
        tensors={"token_level_scores": column, "advantages": column.like(column.values * 10)},
        non_tensors={
            "trajectory_id": np.array([name for name, _ in rows], dtype=object),
            "uid": np.array([name[0] for name, _ in rows], dtype=object),
        },
    )


def test_the_best_and_the_worst_are_drawn_with_all_their_sequences() -> None:
    batch = batch_of({"a": [[0.0, 1.0], [2.0]], "b": [[0.5]], "c": [[-1.0]]})
    drawn = filtered(batch, PFPPOSettings(reweight_method="max_min"), seed=0, step=1)
    names = [str(name).partition("#")[0] for name in drawn.non_tensor_batch["trajectory_id"]]
    assert set(names) <= {"a", "c"}
    copies = list(dict.fromkeys(drawn.non_tensor_batch["trajectory_id"]))
    assert len(copies) == 3
    assert len(names) == sum(2 if copy.startswith("a") else 1 for copy in copies)
    scores, advantages = drawn.batch.ragged("token_level_scores"), drawn.batch.ragged("advantages")
    torch.testing.assert_close(advantages.values, scores.values * 10)


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    batch = batch_of({name: [[float(number)]] for number, name in enumerate("abcdefgh")})
    settings = PFPPOSettings()
    once, again, later = (
        list(filtered(batch, settings, seed=3, step=step).non_tensor_batch["trajectory_id"]) for step in (1, 1, 2)
    )
    assert once == again != later
