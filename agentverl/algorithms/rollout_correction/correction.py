"""Importance weights, rejection and diagnostics for samples whose policy is not quite the one that trains."""

from torch import Tensor

from agentverl.algorithms.rollout_correction.offpolicy import compute_offpolicy_metrics
from agentverl.algorithms.rollout_correction.rejection import compute_rollout_rejection_mask
from agentverl.algorithms.rollout_correction.weights import Metrics, compute_rollout_correction_weights
from agentverl.errors import BadInputError
from agentverl.settings.correction_bounds import Spec


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: Spec | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: Spec | None = None,
) -> tuple[Tensor | None, Tensor, Metrics]:
    """Weights and mask that correct for the rollout policy, from the log-probabilities (B, T) of both.

    See `compute_rollout_correction_weights` and `compute_rollout_rejection_mask`; neither looks at the other's result.
    "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch" (Liu et al. 2025)
    compares them.

    Returns:
        the weights (None without `rollout_is`), the mask (the one given without `rollout_rs`), and metrics, all with
        `rollout_corr/` before them, those of `compute_offpolicy_metrics` included.

    Raises:
        BadInputError: no token is unmasked, shapes differ, or an option or a threshold is none.
    """
    if old_log_prob.shape != rollout_log_prob.shape:
        raise BadInputError(
            f"old_log_prob shape {tuple(old_log_prob.shape)} does not match rollout_log_prob shape "
            f"{tuple(rollout_log_prob.shape)}"
        )
    if old_log_prob.shape != response_mask.shape:
        raise BadInputError(
            f"log_prob shape {tuple(old_log_prob.shape)} does not match response_mask shape "
            f"{tuple(response_mask.shape)}"
        )
    metrics = compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    log_ratio = (old_log_prob - rollout_log_prob).detach()
    weights, mask = None, response_mask
    if rollout_is is not None and rollout_is_threshold is not None:
        weights, found = compute_rollout_correction_weights(
            log_ratio, response_mask, rollout_is, rollout_is_threshold, rollout_is_batch_normalize
        )
        metrics |= found
    if rollout_rs is not None:
        mask, found = compute_rollout_rejection_mask(log_ratio, response_mask, rollout_rs, rollout_rs_threshold)
        metrics |= found
    return weights, mask, {f"rollout_corr/{name}": value for name, value in metrics.items()}
