"""Splitting a trajectory changes no advantage; an ending's policy changes what it says and nothing else."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.keeper import Keeper
from agentverl.settings.algorithm import AlgorithmSettings
from agentverl.settings.on_end import EndSettings, OnEndSettings
from agentverl.trainer.advantages import assign_advantages
from agentverl.trainer.credit import apply_end_policies, apply_void_turns, group_index, set_reward_baselines
from agentverl.trajectory import AgentLoopOutput, Turn


def batch_of(rows: list[tuple[str, str, int, list[float], list[int], str]]) -> DataProto:
    """Rows of (uid, trajectory, sequence, scores, mask, termination)."""
    return DataProto.from_dict(
        tensors={
            "token_level_scores": Ragged.from_list([row[3] for row in rows], torch.float32),
            "token_level_rewards": Ragged.from_list([row[3] for row in rows], torch.float32),
            "response_mask": Ragged.from_list([row[4] for row in rows], torch.int64),
        },
        non_tensors={
            "uid": np.array([row[0] for row in rows], dtype=object),
            "trajectory_id": np.array([row[1] for row in rows], dtype=object),
            "sequence_index": np.array([row[2] for row in rows], dtype=object),
            "termination": np.array([row[5] for row in rows], dtype=object),
            "role": np.array(["main"] * len(rows), dtype=object),
        },
    )


@given(cut=st.integers(0, 6), scores=st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_a_split_trajectory_gets_the_advantages_of_the_whole(cut: int, scores: list[float]) -> None:
    mask = [1, 1, 0, 0, 1, 1]
    whole_scores = [[0.0] * 5 + [score] for score in scores]
    whole = batch_of([("p", f"t{n}", 0, row, mask, "answered") for n, row in enumerate(whole_scores)])
    first = whole_scores[0]
    split = batch_of(
        [
            ("p", "t0", 1, first[cut:], mask[cut:], "answered"),
            ("p", "t1", 0, whole_scores[1], mask, "answered"),
            ("p", "t0", 0, first[:cut], mask[:cut], "answered"),
            ("p", "t2", 0, whole_scores[2], mask, "answered"),
        ]
    )
    for batch in (whole, split):
        assign_advantages(batch, group_index(batch, {}), AlgorithmSettings(adv_estimator="rloo"))
    advantages = split.batch["advantages"]
    torch.testing.assert_close(torch.cat([advantages[2], advantages[0]]), whole.batch["advantages"][0])
    torch.testing.assert_close(advantages[1], whole.batch["advantages"][1])


def test_an_ending_can_replace_the_score_take_off_the_loss_or_leave_the_group() -> None:
    batch = batch_of(
        [
            ("p", "a", 0, [0.0, 1.0, 0.0], [1, 1, 0], "answered"),
            ("p", "b", 0, [0.0, 0.5, 0.0], [1, 1, 0], "response_length"),
            ("p", "c", 0, [0.0, 0.25, 0.0], [1, 1, 0], "deadline"),
        ]
    )
    policies = {
        "response_length": EndSettings(score=-1.0),
        "deadline": EndSettings(loss=False, baseline=False),
    }
    apply_end_policies(batch, policies)
    assert batch.batch["token_level_scores"][1].tolist() == [0.0, -1.0, 0.0]
    assert batch.batch["token_level_scores"][0].tolist() == [0.0, 1.0, 0.0]
    assert [row.tolist() for row in batch.batch["response_mask"].unbind()] == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    groups = group_index(batch, policies)
    assert groups[0] == groups[1] != groups[2]


def test_void_turns_lose_their_loss_but_not_what_was_earned() -> None:
    def batch() -> DataProto:
        made = batch_of(
            [
                ("p", "a", 0, [0.0, 0.0, 0.0, 0.5], [1, 1, 0, 1], "answered"),
                ("p", "b", 0, [0.0, 1.0], [1, 1], "answered"),
            ]
        )
        made.non_tensor_batch["void_spans"] = np.array([[(3, 4)], []], dtype=object)
        return made

    kept, turn, trajectory = batch(), batch(), batch()
    assert apply_void_turns(kept, "train") == 0.5
    assert kept.batch["response_mask"][0].tolist() == [1, 1, 0, 1]
    apply_void_turns(turn, "mask_turn")
    assert turn.batch["response_mask"][0].tolist() == [1, 1, 0, 0]
    assert turn.batch["token_level_scores"][0].tolist() == [0.0, 0.5, 0.0, 0.0]
    apply_void_turns(trajectory, "mask_trajectory")
    assert [row.tolist() for row in trajectory.batch["response_mask"].unbind()] == [[0, 0, 0, 0], [1, 1]]


def test_truncation_masking_takes_the_loss_off_cut_trajectories_and_keeps_their_scores() -> None:
    policies = OnEndSettings.model_validate({"mask_truncated": True, "context_length": {"score": -1.0}}).policies()
    assert policies["response_length"] == EndSettings(loss=False)
    assert policies["context_length"] == EndSettings(score=-1.0, loss=False)
    assert policies["answered"] == EndSettings()


def test_a_greedy_sample_gives_its_prompt_a_baseline() -> None:
    batch = batch_of([("p", "a", 0, [1.0], [1], "answered"), ("q", "b", 0, [0.0], [1], "answered")])
    greedy = {uid: greedy_group(uid, score) for uid, score in (("p", 0.25), ("q", 1.0))}
    set_reward_baselines(batch, greedy, {})
    assert batch.non_tensor_batch["reward_baselines"].tolist() == [0.25 + 0.5, 1.0 + 0.5]
    set_reward_baselines(batch, greedy, {"answered": EndSettings(score=-1.0)})
    assert batch.non_tensor_batch["reward_baselines"].tolist() == [-1.0, -1.0]


def greedy_group(uid: str, score: float) -> Group:
    """One trajectory with a score and a turn reward of 0.5."""
    turns = [Turn(role="assistant", start=0, stop=1, reward=0.5), Turn(role="assistant", start=2, stop=3)]
    output = AgentLoopOutput(
        prompt_ids=[1], response_ids=[2, 3, 4], response_mask=[1, 0, 1], turns=turns, trajectory_id=f"{uid}/greedy/0"
    )
    episode = Episode(uid=f"{uid}/greedy", sample=0, row={}, sampling_params={"temperature": 0.0})
    result = EpisodeResult(episode=episode, outputs=[output], score=score)
    Keeper().keep(result)
    return Group(uid=uid, row={}, results=[result], failures=[])
