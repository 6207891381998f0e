"""What a policy loss and the correction for the rollout policy ask of their settings."""

from collections.abc import Iterator

from agentverl.errors import BadInputError
from agentverl.settings.correction_bounds import rejection_bounds, weight_bounds
from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.settings.root import Settings

_SECTION = "algorithm.rollout_correction"


def check_correction(settings: Settings) -> list[str]:
    """The problems of the policy loss and of `algorithm.rollout_correction`, one line each."""
    return [*_loss(settings), *_bounds(settings.algorithm.rollout_correction), *_bypass(settings)]


def _loss(s: Settings) -> Iterator[str]:
    loss = s.actor_rollout_ref.actor.policy_loss
    if loss.loss_mode == "dro" and loss.dro_beta is None:
        yield "actor.policy_loss.loss_mode=dro needs actor.policy_loss.dro_beta, such as 0.1"
    if loss.clip_cov_lb >= loss.clip_cov_ub:
        yield (
            f"actor.policy_loss.clip_cov_lb={loss.clip_cov_lb:g} is not below actor.policy_loss.clip_cov_ub="
            f"{loss.clip_cov_ub:g}, so no token lies between; lower the first or raise the second"
        )


def _bounds(correction: RolloutCorrectionSettings) -> Iterator[str]:
    try:
        weight_bounds(correction.rollout_is_threshold)
    except BadInputError as error:
        yield f"{_SECTION}: {error}"
    try:
        if correction.rollout_rs is not None:
            rejection_bounds(correction.rollout_rs, correction.rollout_rs_threshold)
    except BadInputError as error:
        yield f"{_SECTION}: {error}"


def _bypass(s: Settings) -> Iterator[str]:
    correction, loss_mode = s.algorithm.rollout_correction, s.actor_rollout_ref.actor.policy_loss.loss_mode
    if not correction.bypass_mode:
        if loss_mode == "bypass_mode":
            yield f"actor.policy_loss.loss_mode=bypass_mode belongs to {_SECTION}.bypass_mode=true; set that"
        return
    if loss_mode not in ("vanilla", "bypass_mode"):
        yield (
            f"actor.policy_loss.loss_mode={loss_mode} has no effect: {_SECTION}.bypass_mode=true has a loss of its "
            f"own, {_SECTION}.loss_type; drop one of the two"
        )
    if correction.loss_type == "ppo_clip" and correction.rollout_is is not None:
        yield (
            f"{_SECTION}.rollout_is={correction.rollout_is} has no effect: the ratio of loss_type=ppo_clip corrects "
            "already; set loss_type=reinforce, or rollout_is=null"
        )
    if correction.rollout_is_batch_normalize and correction.rollout_is is not None:
        yield (
            f"{_SECTION}.rollout_is_batch_normalize=true does not go with bypass_mode=true: its weights are made in "
            "each micro-batch, so their mean would depend on how a batch is cut; drop one of the two"
        )
