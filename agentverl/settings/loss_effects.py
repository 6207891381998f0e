"""Which keys of the policy's loss, of KL terms and of the correction for the rollout policy have no effect when."""

from collections.abc import Callable

from agentverl.settings.known_names import AVERAGED_BY_SEQUENCE, ESTIMATORS, POLICY_LOSSES
from agentverl.settings.root import Settings
from agentverl.settings.rule import Rule

A = "actor_rollout_ref.actor."
R = "actor_rollout_ref.rollout."
F = "actor_rollout_ref.ref."
C = "algorithm.rollout_correction."

_READ_SQUARES = {"optimal_token_baseline", "tir_optimal_token_baseline"}
"""Estimators for which the policy computes something on the samples whatever the loss."""


def _loss(s: Settings) -> str:
    correction = s.algorithm.rollout_correction
    if correction.bypass_mode:
        return "vanilla" if correction.loss_type == "ppo_clip" else "reinforce"
    return s.actor_rollout_ref.actor.policy_loss.loss_mode


def _loss_is_not(*names: str) -> Callable[[Settings], bool]:
    return lambda s: _loss(s) in (POLICY_LOSSES | {"reinforce"}) - set(names)


def _computes_no_log_probs(s: Settings) -> bool:
    algorithm = s.algorithm
    return algorithm.rollout_correction.bypass_mode and algorithm.adv_estimator in ESTIMATORS - _READ_SQUARES


def _never_leaves_the_samples(s: Settings) -> bool:
    actor = s.actor_rollout_ref.actor
    one_step = s.data.train_batch_size <= actor.ppo_mini_batch_size and actor.ppo_epochs == 1
    return one_step and not s.algorithm.rollout_correction.bypass_mode


def _sums_normed(s: Settings) -> bool:
    modes = [s.actor_rollout_ref.actor.weight_mode]
    if s.needs_critic:
        modes.append(s.critic.completed(s.actor_rollout_ref.actor).loss_agg_mode)
    return "seq-mean-token-sum-norm" in modes


LOSS_RULES: tuple[Rule[Settings], ...] = (
    Rule(
        lambda s: not s.algorithm.use_kl_in_reward,
        "algorithm.use_kl_in_reward is false",
        ("algorithm.kl_penalty", "algorithm.kl_ctrl.*"),
        True,
    ),
    Rule(
        lambda s: s.algorithm.kl_ctrl.type == "fixed",
        "algorithm.kl_ctrl.type is fixed",
        ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"),
    ),
    Rule(
        lambda s: not s.actor_rollout_ref.actor.use_kl_loss,
        "actor.use_kl_loss is false",
        (A + "kl_loss_coef", A + "kl_loss_type"),
        True,
    ),
    Rule(lambda s: not s.needs_reference, "no KL term asks for a reference policy", (F + "*",), True),
    Rule(
        lambda s: None not in (s.actor_rollout_ref.actor.clip_ratio_low, s.actor_rollout_ref.actor.clip_ratio_high),
        "actor.clip_ratio_low and actor.clip_ratio_high are both set",
        (A + "clip_ratio",),
        True,
    ),
    Rule(
        _never_leaves_the_samples,
        "with one optimiser step a batch the policy is still the one that sampled",
        (
            *(A + name for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")),
            *(A + name for name in ("tau_pos", "tau_neg", "policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef")),
        ),
        True,
    ),
    Rule(
        _loss_is_not("vanilla", "dppo_tv", "dppo_kl"), "the policy loss does not read it", (A + "clip_ratio_c",), True
    ),
    Rule(
        _loss_is_not("vanilla", "dppo_tv", "dppo_kl", "gspo", "geo_mean", "cispo", "clip_cov"),
        "the policy loss does not clip",
        (A + "clip_ratio", A + "clip_ratio_low", A + "clip_ratio_high"),
        True,
    ),
    Rule(
        lambda s: _loss(s) in AVERAGED_BY_SEQUENCE and not s.needs_critic,
        "the policy loss is a mean over sequences",
        (A + "loss_agg_mode",),
        True,
    ),
    Rule(_loss_is_not("sapo"), "the policy loss is not sapo", (A + "tau_pos", A + "tau_neg")),
    Rule(_loss_is_not("clip_cov"), "the policy loss is not clip_cov", (A + "policy_loss.clip_cov_*",)),
    Rule(
        _loss_is_not("kl_cov"),
        "the policy loss is not kl_cov",
        (A + "policy_loss.kl_cov_ratio", A + "policy_loss.ppo_kl_coef"),
    ),
    Rule(_loss_is_not("dro"), "the policy loss is not dro", (A + "policy_loss.dro_beta",)),
    Rule(
        lambda s: not _sums_normed(s),
        "actor.loss_agg_mode is not seq-mean-token-sum-norm",
        (A + "loss_scale_factor",),
    ),
    Rule(
        lambda s: s.algorithm.rollout_correction.rollout_is is None,
        "algorithm.rollout_correction.rollout_is is not set",
        (C + "rollout_is_threshold", C + "rollout_is_batch_normalize"),
        True,
    ),
    Rule(
        lambda s: s.algorithm.rollout_correction.rollout_rs is None,
        "algorithm.rollout_correction.rollout_rs is not set",
        (C + "rollout_rs_threshold",),
        True,
    ),
    Rule(
        lambda s: not s.algorithm.rollout_correction.bypass_mode,
        "algorithm.rollout_correction.bypass_mode is false",
        (C + "loss_type",),
        True,
    ),
    Rule(
        _computes_no_log_probs,
        "algorithm.rollout_correction.bypass_mode computes no old log-probabilities",
        (R + "log_prob_*",),
        True,
    ),
)
