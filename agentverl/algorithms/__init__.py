"""verl's names for the algorithms, each imported when it is first used."""

import importlib
from typing import Any

_MODULES = {
    "AdaptiveKLController": "kl",
    "FixedKLController": "kl",
    "agg_loss": "aggregation",
    "calculate_sum_pi_squared_from_logits": "distributions",
    "compute_entropy_loss": "distributions",
    "compute_gae_advantage_return": "return_advantages",
    "compute_gdpo_outcome_advantage": "batch_advantages",
    "compute_gigpo_advantage": "turn_advantages",
    "compute_gpg_outcome_advantage": "batch_advantages",
    "compute_grpo_outcome_advantage": "group_advantages",
    "compute_grpo_passk_outcome_advantage": "group_advantages",
    "compute_kl_loss": "kl",
    "compute_multi_turn_optimal_token_baseline_advantage": "token_baselines",
    "compute_offpolicy_metrics": "rollout_correction.offpolicy",
    "compute_opo_outcome_advantage": "group_advantages",
    "compute_optimal_token_baseline_advantage": "token_baselines",
    "compute_policy_loss_bypass_mode": "policy_losses.bypass",
    "compute_policy_loss_cispo": "policy_losses.clipped",
    "compute_policy_loss_clip_cov": "policy_losses.covariance",
    "compute_policy_loss_dppo_kl": "policy_losses.trust_region",
    "compute_policy_loss_dppo_tv": "policy_losses.trust_region",
    "compute_policy_loss_dro": "policy_losses.policy_gradient",
    "compute_policy_loss_geo_mean": "policy_losses.sequence_ratio",
    "compute_policy_loss_gpg": "policy_losses.policy_gradient",
    "compute_policy_loss_gspo": "policy_losses.sequence_ratio",
    "compute_policy_loss_kl_cov": "policy_losses.covariance",
    "compute_policy_loss_reinforce": "policy_losses.policy_gradient",
    "compute_policy_loss_sapo": "policy_losses.clipped",
    "compute_policy_loss_vanilla": "policy_losses.clipped",
    "compute_reinforce_plus_plus_baseline_outcome_advantage": "batch_advantages",
    "compute_reinforce_plus_plus_outcome_advantage": "return_advantages",
    "compute_remax_outcome_advantage": "return_advantages",
    "compute_rewards": "kl",
    "compute_rloo_outcome_advantage": "group_advantages",
    "compute_rloo_vectorized_outcome_advantage": "group_advantages",
    "compute_rollout_correction_and_rejection_mask": "rollout_correction.correction",
    "compute_rollout_correction_weights": "rollout_correction.weights",
    "compute_rollout_rejection_mask": "rollout_correction.rejection",
    "compute_turn_gae_advantage_return": "turn_advantages",
    "compute_turn_grpo_advantage": "turn_advantages",
    "compute_value_loss": "value_loss",
    "entropy_from_logits": "distributions",
    "entropy_from_logits_with_chunking": "distributions",
    "estimate_advantages": "estimation",
    "get_adv_estimator_fn": "registry",
    "get_kl_controller": "kl",
    "get_policy_loss_fn": "registry",
    "get_response_mask": "masked",
    "has_signal": "group_filters",
    "kl_in_reward": "kl",
    "kl_penalty": "kl",
    "logprobs_from_logits": "distributions",
    "loss_weights": "aggregation",
    "masked_mean": "masked",
    "masked_sum": "masked",
    "masked_var": "masked",
    "masked_whiten": "masked",
    "pf_ppo_draws": "policy_filtration",
    "pf_ppo_weights": "policy_filtration",
    "register_adv_est": "registry",
    "register_policy_loss": "registry",
    "row_loss_weights": "aggregation",
}
_RENAMED = {
    "compute_grpo_vectorized_outcome_advantage": ("group_advantages", "compute_grpo_outcome_advantage"),
    "logprobs_from_logits_naive": ("distributions", "logprobs_from_logits"),
}


def __getattr__(name: str) -> Any:
    module, attribute = _RENAMED.get(name, (_MODULES.get(name), name))
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*_MODULES, *_RENAMED})
