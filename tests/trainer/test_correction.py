"""Between old log-probs and advantages: what a correction does to a batch."""

import numpy as np
import pytest
import torch

from agentverl.errors import TrainingStoppedError
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.trainer.correction import correct, stand_in_for_old_policy

LENGTHS = [3, 2]


def batch(old: list[float] | None = None, *, known: bool = True, mask: int = 1) -> DataProto:
    """Two sequences whose ratios are 1, 2, 4 and 1, 1."""

    def column(values: list[float]) -> Ragged:
        return Ragged.from_lengths(torch.tensor(values), LENGTHS)

    ratios = torch.tensor([1.0, 2.0, 4.0, 1.0, 1.0]).log().tolist()
    columns = {
        "response_mask": Ragged.from_lengths(torch.full((5,), mask), LENGTHS),
        "rollout_log_probs": column([-0.5] * 5),
        "old_log_probs": column([ratio - 0.5 for ratio in ratios]),
    }
    return DataProto(Columns(columns), {"has_rollout_log_probs": np.array([known, True], dtype=object)})


def test_weights_become_a_column_and_rejected_tokens_lose_their_loss() -> None:
    data = batch()
    correction = RolloutCorrectionSettings(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold="0.3_3")
    metrics = correct(data, correction)
    assert data.batch.ragged("rollout_is_weights").values.tolist() == pytest.approx([1, 2, 2, 1, 1])
    assert data.batch.ragged("response_mask").values.tolist() == [1, 1, 0, 1, 1]
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(0.2)
    assert metrics["training/rollout_probs_diff_valid"] == 1


def test_without_a_correction_the_distance_is_still_told() -> None:
    data = batch()
    metrics = correct(data, RolloutCorrectionSettings())
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.6 * np.log(2))
    assert "rollout_is_weights" not in data.batch
    assert data.batch.ragged("response_mask").values.tolist() == [1] * 5


def test_in_bypass_mode_the_loss_corrects() -> None:
    data = batch()
    del data.batch["old_log_probs"]
    stand_in_for_old_policy(data)
    assert data.batch.ragged("old_log_probs").values.tolist() == [-0.5] * 5
    assert correct(data, RolloutCorrectionSettings(preset="bypass_pg_is")) == {}
    assert "rollout_is_weights" not in data.batch


def test_a_batch_without_a_token_needs_no_correction() -> None:
    metrics = correct(batch(mask=0), RolloutCorrectionSettings(rollout_is="token"))
    assert metrics == {"training/rollout_probs_diff_valid": 0.0}


def test_log_probs_that_nobody_recorded_are_missed() -> None:
    with pytest.raises(TrainingStoppedError, match=r"rollout_is=token .* 1 of 2 sequences came without"):
        correct(batch(known=False), RolloutCorrectionSettings(rollout_is="token"))
    with pytest.raises(TrainingStoppedError, match="bypass_mode=true needs"):
        stand_in_for_old_policy(batch(known=False))
    assert correct(batch(known=False), RolloutCorrectionSettings()) == {}
