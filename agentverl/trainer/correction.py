"""What is done where the policy that sampled is not quite the one that trains: weights, rejection, diagnostics."""

from agentverl.algorithms.rollout_correction.correction import compute_rollout_correction_and_rejection_mask
from agentverl.errors import TrainingStoppedError
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.trainer.data_metrics import rollout_difference_metrics


def stand_in_for_old_policy(batch: DataProto) -> None:
    """Bypass mode: the log-probabilities of the rollout policy are the old ones.

    Raises:
        TrainingStoppedError: some tokens came without them.
    """
    _require_rollout_log_probs(batch, "bypass_mode=true")
    rollout = batch.batch.ragged("rollout_log_probs")
    batch.batch["old_log_probs"] = Ragged(rollout.values.clone(), rollout.offsets)


def correct(batch: DataProto, correction: RolloutCorrectionSettings) -> dict[str, float]:
    """Weigh and reject what the rollout policy sampled, by the old policy's log-probabilities where there are any.

    Adds the column `rollout_is_weights` and takes the loss off rejected tokens (`response_mask`), which stay in the
    statistics of their group. In bypass mode the loss does both, from the log-probabilities of the current policy.

    Returns:
        how far the two policies are apart, and what was done about it, under verl's names.

    Raises:
        TrainingStoppedError: some tokens came without log-probabilities that are needed.
    """
    if correction.corrects:
        _require_rollout_log_probs(batch, f"rollout_is={correction.rollout_is} and rollout_rs={correction.rollout_rs}")
    if correction.bypass_mode or "old_log_probs" not in batch.batch or _unknown_rows(batch):
        return {}
    mask, metrics = batch.batch.ragged("response_mask"), rollout_difference_metrics(batch)
    if not mask.values.any():
        return metrics
    weights, kept, found = compute_rollout_correction_and_rejection_mask(
        batch.batch.ragged("old_log_probs").to_padded(),
        batch.batch.ragged("rollout_log_probs").to_padded(),
        mask.to_padded(),
        correction.rollout_is,
        correction.rollout_is_threshold,
        correction.rollout_is_batch_normalize,
        correction.rollout_rs,
        correction.rollout_rs_threshold,
    )
    batch.batch["response_mask"] = Ragged.from_padded(kept, mask.lengths)
    if weights is not None:
        batch.batch["rollout_is_weights"] = Ragged.from_padded(weights, mask.lengths)
    return metrics | found


def _unknown_rows(batch: DataProto) -> int:
    """Sequences whose tokens came without the log-probabilities that they were sampled with."""
    return int((~batch.non_tensor_batch["has_rollout_log_probs"].astype(bool)).sum())


def _require_rollout_log_probs(batch: DataProto, why: str) -> None:
    unknown = _unknown_rows(batch)
    if unknown:
        raise TrainingStoppedError(
            f"algorithm.rollout_correction: {why} needs the log-probability that each token was sampled with, but "
            f"{unknown} of {len(batch)} sequences came without; let the agent loop return response_logprobs"
        )
