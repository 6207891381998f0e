"""Sequences of a trajectory are joined in order, turns are counted through, and what comes back is split again."""

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.trainer.advantages import assign_advantages
from agentverl.trainer.joining import JoinedTrajectories


def batch_of(rows: list[tuple[str, int, list[int], list[float], list[str]]]) -> DataProto:
    """Rows of (trajectory, sequence, turn of each token or -1, values, state keys); the last token earns 1."""
    turns = Ragged.from_list([row[2] for row in rows], torch.int64)
    rewards = [[0.0] * (len(row[2]) - 1) + [1.0 if row[1] == 1 or row[0] == "whole" else 0.0] for row in rows]
    keys = np.empty(len(rows), dtype=object)
    keys[:] = [row[4] for row in rows]
    return DataProto.from_dict(
        tensors={
            "token_level_rewards": Ragged.from_list(rewards, torch.float32),
            "response_mask": turns.like((turns.values >= 0).long()),
            "turn_index": turns,
            "values": Ragged.from_list([row[3] for row in rows], torch.float32),
        },
        non_tensors={
            "trajectory_id": np.array([row[0] for row in rows], dtype=object),
            "sequence_index": np.array([row[1] for row in rows], dtype=object),
            "role": np.array(["main"] * len(rows), dtype=object),
            "state_keys": keys,
        },
    )


TURNS, VALUES, KEYS = [0, 0, -1, 1, -1, 2, 2], [0.1, 0.2, 9.0, 0.3, 9.0, 0.4, 0.5], ["s", "t", "u"]


def split_at(cut: int) -> DataProto:
    """The trajectory in two sequences, the second first; each counts its turns from 0."""
    before = len({turn for turn in TURNS[:cut] if turn >= 0})
    later = [turn - before if turn >= 0 else -1 for turn in TURNS[cut:]]
    return batch_of(
        [("cut", 1, later, VALUES[cut:], KEYS[before:]), ("cut", 0, TURNS[:cut], VALUES[:cut], KEYS[:before])]
    )


def test_turns_and_their_states_are_counted_through() -> None:
    joined = JoinedTrajectories(split_at(3))
    assert joined.turns().tolist() == [TURNS]
    assert joined.of_each_turn("state_keys") == [KEYS]


def test_estimators_along_time_bootstrap_at_a_cut_from_the_next_sequence() -> None:
    for name in ("gae", "turn_gae"):
        settings = AlgorithmSettings(adv_estimator=name, gamma=0.9, lam=0.8)
        whole = batch_of([("whole", 0, TURNS, VALUES, KEYS)])
        assign_advantages(whole, ["g"], settings)
        for cut in (2, 3, 5):
            split = split_at(cut)
            assign_advantages(split, ["g", "g"], settings)
            for column in ("advantages", "returns"):
                rows = split.batch.ragged(column)
                kept = torch.tensor(TURNS) >= 0
                joined = torch.cat([rows[1], rows[0]])[kept]
                torch.testing.assert_close(joined, whole.batch.ragged(column).values[kept])
