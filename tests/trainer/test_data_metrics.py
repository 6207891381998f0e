"""What is said of a batch is what stands in it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.trainer.data_metrics import data_metrics, rollout_difference_metrics, termination_metrics
from agentverl.trajectory import Termination


def objects(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=object)


def batch() -> DataProto:
    """Trajectory a in two sequences, b answered nothing, c was cut."""
    return DataProto.from_dict(
        tensors={
            "prompt_length": torch.tensor([2, 4, 1, 2]),
            "response_mask": Ragged.from_list([[1, 0, 1], [1], [], [1, 1]], torch.int64),
            "token_level_scores": Ragged.from_list([[0.0, 0.0, 0.5], [1.0], [], [0.0, -1.0]], torch.float32),
            "token_level_rewards": Ragged.from_list([[0.0, 0.0, 0.25], [1.0], [], [0.0, -1.0]], torch.float32),
            "advantages": Ragged.from_list([[1.0, 9.0, 1.0], [1.0], [], [-2.0, -2.0]], torch.float32),
            "returns": Ragged.from_list([[3.0, 9.0, 3.0], [3.0], [], [-2.0, -2.0]], torch.float32),
        },
        non_tensors={
            "trajectory_id": objects("p/0", "p/0", "p/1", "p/2"),
            "termination": objects("answered", "answered", "answered", "response_length"),
            "num_turns": objects(3, 3, 1, 2),
            "tool_call_count": objects(1, 0, 0, 2),
        },
    )


def test_scores_are_summed_over_trajectories_and_advantages_taken_over_policy_tokens() -> None:
    metrics = data_metrics(batch(), max_prompt_length=4)
    assert [metrics[f"critic/score/{name}"] for name in ("mean", "max", "min")] == pytest.approx([1 / 6, 1.5, -1.0])
    assert metrics["critic/rewards/max"] == 1.25
    assert [metrics[f"critic/advantages/{name}"] for name in ("mean", "max", "min")] == pytest.approx([-0.2, 1, -2])
    assert metrics["critic/returns/max"] == 3.0


def test_lengths_turns_and_calls() -> None:
    metrics = data_metrics(batch(), max_prompt_length=4)
    assert [metrics[f"response_length/{name}"] for name in ("mean", "max", "min")] == [1.5, 3, 0]
    assert [metrics[f"prompt_length/{name}"] for name in ("mean", "max", "min")] == [2.25, 4, 1]
    assert metrics["response_length/clip_ratio"] == 0.25
    assert metrics["prompt_length/clip_ratio"] == 0.25
    assert metrics["response/aborted_ratio"] == 0.25
    assert metrics["response_length_non_aborted/mean"] == 2.0
    assert metrics["response_length_non_aborted/clip_ratio"] == pytest.approx(1 / 3)
    assert metrics["global_seqlen/max"] == 5
    assert metrics["num_turns/mean"] == 2.25
    assert metrics["tool_call_counts/max"] == 2.0


def test_a_batch_in_which_nothing_was_sampled_has_metrics_too() -> None:
    empty = batch().select_idxs([2])
    metrics = data_metrics(empty, max_prompt_length=4)
    assert metrics["response/aborted_ratio"] == 1.0
    assert "critic/advantages/mean" not in metrics
    assert "response_length_non_aborted/mean" not in metrics


@given(st.lists(st.sampled_from(list(Termination)), max_size=20))
def test_the_shares_of_endings_add_up_and_none_is_missing(endings: list[Termination]) -> None:
    shares = termination_metrics(endings)
    assert len(shares) == len(Termination)
    assert sum(shares.values()) == pytest.approx(1.0 if endings else 0.0)
    if endings:
        ending = endings[0]
        name = f"training/termination/{ending.value.replace(':', '_')}"
        assert shares[name] == endings.count(ending) / len(endings)


def test_the_difference_of_server_and_engine_leaves_out_what_was_not_sampled() -> None:
    data = batch()
    assert rollout_difference_metrics(data) == {}
    log = np.log
    data.batch["old_log_probs"] = Ragged.from_list([[log(0.5), 0.0, log(0.25)], [log(0.5)], [], [log(0.5), log(0.75)]])
    data.batch["rollout_log_probs"] = Ragged.from_list([[log(0.5), -9.0, log(0.25)], [log(0.6)], [], [log(0.5), 0.0]])
    metrics = rollout_difference_metrics(data)
    assert metrics["training/rollout_probs_diff_valid"] == 1.0
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.25, abs=1e-6)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(0.07, abs=1e-6)
    differences = [0.0, 0.0, 0.1, 0.0, 0.25]
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(np.std(differences), abs=1e-6)
    correlation = np.corrcoef([0.5, 0.25, 0.5, 0.5, 0.75], [0.5, 0.25, 0.6, 0.5, 1.0])[0, 1]
    assert metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation, abs=1e-5)
    assert rollout_difference_metrics(data.select_idxs([2])) == {"training/rollout_probs_diff_valid": 0.0}
