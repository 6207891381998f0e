"""The loss of bypass mode: the rollout policy stands for the old one, whose log-probabilities nobody recomputes."""

from typing import Any

from torch import Tensor

from agentverl.algorithms.loss_config import setting
from agentverl.algorithms.policy_losses.clipped import compute_policy_loss_vanilla
from agentverl.algorithms.policy_losses.inputs import LossAndMetrics
from agentverl.algorithms.policy_losses.policy_gradient import compute_policy_loss_reinforce
from agentverl.algorithms.rollout_correction.correction import compute_rollout_correction_and_rejection_mask
from agentverl.errors import BadInputError

_KEYS = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")


def compute_policy_loss_bypass_mode(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """The loss where `old_log_prob` is the rollout policy's own; corrections are made from it and `log_prob`, (B, T).

    - loss_type "ppo_clip": `compute_policy_loss_vanilla` of what rejection leaves; its ratio corrects, so there are no
      weights
    - loss_type "reinforce": `compute_policy_loss_reinforce` of what rejection leaves, times the weights of `rollout_is`

    What is rejected changes as the policy does. Weights that are normalised are so among the tokens given here.

    Args:
        config: policy_loss.rollout_correction (the keys of `algorithm.rollout_correction`), global_batch_info, and what
            the loss of that type reads. With `loss_weight` rejected tokens stay counted in what the loss is divided by.
        rollout_is_weights: not looked at.

    Returns:
        the loss, and the metrics of that loss and of `compute_rollout_correction_and_rejection_mask`.

    Raises:
        BadInputError: there is no policy_loss.rollout_correction, or its loss_type is unknown.
    """
    correction = setting(setting(config, "policy_loss", None), "rollout_correction", None)
    if correction is None:
        raise BadInputError("bypass_mode needs the section rollout_correction in policy_loss, which is missing")
    loss_type = setting(correction, "loss_type", "ppo_clip")
    if loss_type not in ("ppo_clip", "reinforce"):
        raise BadInputError(f"Invalid loss_type: {loss_type}. Must be one of ppo_clip, reinforce")
    weights, mask = None, response_mask
    metrics: dict[str, float] = {}
    if (response_mask != 0).any():
        given = {key: setting(correction, key) for key in _KEYS}
        weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
            log_prob.detach(), old_log_prob, response_mask, **given
        )
    if loss_type == "reinforce":
        loss, shares = compute_policy_loss_reinforce(
            old_log_prob, log_prob, advantages, mask, loss_agg_mode, config, weights
        )
    else:
        loss, shares = compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, mask, loss_agg_mode, config)
    return loss, shares | metrics
