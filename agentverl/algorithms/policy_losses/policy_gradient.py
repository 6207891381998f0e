"""Losses without a clip: the plain policy gradient, the same weighted for samples of another policy, and DRO."""

from typing import Any

from torch import Tensor

from agentverl.algorithms.policy_losses.inputs import LossAndMetrics, LossInputs, policy_loss_setting
from agentverl.errors import BadInputError


def compute_policy_loss_gpg(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """GPG (arXiv:2504.02546), the policy gradient itself: -A log_prob. There are no metrics.

    `old_log_prob` is not looked at, so only the first optimiser step after sampling follows the true gradient.
    """
    inputs = LossInputs.clean(log_prob, log_prob, advantages, response_mask)
    return inputs.total(-inputs.log_prob * inputs.advantages, loss_agg_mode, config, rollout_is_weights), {}


def compute_policy_loss_reinforce(
    rollout_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """REINFORCE for samples of the rollout policy: -A w log_prob, w being `rollout_is_weights` or 1, all (B, T).

    Returns:
        the loss, and the metric actor/ppo_kl, the mean of rollout_log_prob - log_prob.
    """
    inputs = LossInputs.clean(rollout_log_prob, log_prob, advantages, response_mask)
    loss = inputs.total(-inputs.advantages * inputs.log_prob, loss_agg_mode, config, rollout_is_weights)
    return loss, {"actor/ppo_kl": inputs.mean(-inputs.log_ratio)}


def compute_policy_loss_dro(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> LossAndMetrics:
    """Direct reward optimisation (arXiv:2405.19107): the policy gradient with a quadratic pull to the sampling policy.

    -(A log_prob - beta / 2 (log_prob - old_log_prob)^2), beta = `policy_loss.dro_beta`.

    Args:
        config: policy_loss.dro_beta and global_batch_info, as attributes or items.
        rollout_is_weights: (B, T), multiplied onto the losses.

    Returns:
        the loss, and the metric actor/ppo_kl, the mean of old_log_prob - log_prob.

    Raises:
        BadInputError: dro_beta is not set, or not positive.
    """
    beta = policy_loss_setting(config, "dro_beta")
    if beta is None or not beta > 0:
        raise BadInputError(f"policy_loss.dro_beta must be a positive value for the loss dro, such as 0.1; got {beta}")
    inputs = LossInputs.clean(old_log_prob, log_prob, advantages, response_mask)
    losses = -(inputs.log_prob * inputs.advantages - 0.5 * beta * inputs.log_ratio.square())
    loss = inputs.total(losses, loss_agg_mode, config, rollout_is_weights)
    return loss, {"actor/ppo_kl": inputs.mean(-inputs.log_ratio)}
