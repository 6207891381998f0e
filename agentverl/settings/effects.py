"""Which keys have no effect in which set-up: an error, or a warning where users of verl type them from habit."""

from collections.abc import Callable

from agentverl.settings.known_names import ESTIMATORS
from agentverl.settings.loss_effects import LOSS_RULES
from agentverl.settings.optim import OptimSettings
from agentverl.settings.root import Settings
from agentverl.settings.rule import Rule

A = "actor_rollout_ref.actor."
R = "actor_rollout_ref.rollout."
F = "actor_rollout_ref.ref."

_NORMALISED_BY_GROUP = {"grpo", "grpo_vectorized", "grpo_passk", "gdpo", "turn_grpo", "gigpo"}
_DISCOUNTED = {"gae", "turn_gae", "turn_grpo", "gigpo", "reinforce_plus_plus"}


def _estimator_is_not(names: set[str]) -> Callable[[Settings], bool]:
    return lambda s: s.algorithm.adv_estimator in ESTIMATORS - names


def _rows_come_from_files(s: Settings) -> bool:
    return bool(s.data.train_files)


def _never_validates(s: Settings) -> bool:
    return not s.validates


def _calls_no_tools(s: Settings) -> bool:
    return s.actor_rollout_ref.rollout.agent_loop == "single_turn_agent" and not _rows_come_from_files(s)


def _trains_no_critic(s: Settings) -> bool:
    return not s.needs_critic


def _optim_rules(short: str, path: str, optim_of: Callable[[Settings], OptimSettings]) -> tuple[Rule[Settings], ...]:
    def schedule_is(*names: str) -> Callable[[Settings], bool]:
        return lambda s: optim_of(s).lr_scheduler_type in names

    return (
        Rule(
            lambda s: optim_of(s).lr_warmup_steps >= 0,
            f"{short}.lr_warmup_steps is set",
            (path + ".lr_warmup_steps_ratio",),
            True,
        ),
        Rule(schedule_is("constant"), f"{short}.lr_scheduler_type is constant", (path + ".min_lr_ratio",), True),
        Rule(
            schedule_is("constant", "linear", "wsd"),
            f"{short}.lr_scheduler_type is not cosine",
            (path + ".num_cycles",),
            True,
        ),
        Rule(
            schedule_is("constant", "linear", "cosine"),
            f"{short}.lr_scheduler_type is not wsd",
            (path + ".stable_ratio",),
        ),
    )


RULES: tuple[Rule[Settings], ...] = (
    Rule(_rows_come_from_files, "tasks come from data.train_files", ("data.train_size",)),
    Rule(lambda s: bool(s.data.val_files), "held-out tasks come from data.val_files", ("data.val_size",)),
    Rule(lambda s: not s.data.train_files, "data.train_files is not set", ("data.train_max_samples",)),
    Rule(lambda s: not s.data.val_files, "data.val_files is not set", ("data.val_max_samples",)),
    Rule(
        lambda s: not s.data.train_files and not s.data.val_files,
        "neither data.train_files nor data.val_files is set",
        ("data.prompt_key", "data.reward_fn_key"),
    ),
    Rule(
        _never_validates,
        "nothing is ever validated",
        ("data.val_*", R + "val_kwargs.*", "trainer.log_val_generations"),
        True,
    ),
    Rule(
        _never_validates, "nothing is ever validated", ("trainer.validation_data_dir", "data.validation_shuffle"), True
    ),
    Rule(
        lambda s: s.data.filter_overlong_prompts,
        "data.filter_overlong_prompts drops them already",
        ("data.truncation",),
        True,
    ),
    Rule(
        _estimator_is_not(_NORMALISED_BY_GROUP),
        "the advantage estimator does not read it",
        ("algorithm.norm_adv_by_std_in_grpo",),
    ),
    Rule(
        _estimator_is_not(_DISCOUNTED),
        "the advantage estimator does not read it",
        ("algorithm.gamma",),
        True,
    ),
    Rule(_estimator_is_not({"gae", "turn_gae"}), "the advantage estimator does not read it", ("algorithm.lam",), True),
    Rule(_estimator_is_not({"gigpo"}), "the advantage estimator is not gigpo", ("algorithm.step_advantage_weight",)),
    *LOSS_RULES,
    Rule(lambda s: not s.actor_rollout_ref.actor.shuffle, "actor.shuffle is false", (A + "data_loader_seed",)),
    Rule(
        lambda s: s.actor_rollout_ref.actor.cuts_by_tokens,
        "micro-batches are cut by tokens (actor.use_dynamic_bsz)",
        (A + "ppo_micro_batch_size_per_gpu",),
        True,
    ),
    Rule(
        lambda s: (
            not s.actor_rollout_ref.actor.cuts_by_tokens
            and s.actor_rollout_ref.old_log_prob_limit.max_tokens is None
            and s.actor_rollout_ref.ref_log_prob_limit.max_tokens is None
        ),
        "micro-batches are cut by sequences (actor.use_dynamic_bsz)",
        (A + "ppo_max_token_len_per_gpu",),
        True,
    ),
    Rule(
        lambda s: s.actor_rollout_ref.old_log_prob_limit.max_tokens is not None,
        "these micro-batches are cut by tokens (rollout.log_prob_use_dynamic_bsz)",
        (R + "log_prob_micro_batch_size_per_gpu",),
        True,
    ),
    Rule(
        lambda s: s.actor_rollout_ref.old_log_prob_limit.max_tokens is None,
        "these micro-batches are cut by sequences (rollout.log_prob_use_dynamic_bsz)",
        (R + "log_prob_max_token_len_per_gpu",),
        True,
    ),
    Rule(
        lambda s: s.actor_rollout_ref.ref_log_prob_limit.max_tokens is not None,
        "these micro-batches are cut by tokens (ref.log_prob_use_dynamic_bsz)",
        (F + "log_prob_micro_batch_size_per_gpu",),
        True,
    ),
    Rule(
        lambda s: s.actor_rollout_ref.ref_log_prob_limit.max_tokens is None,
        "these micro-batches are cut by sequences (ref.log_prob_use_dynamic_bsz)",
        (F + "log_prob_max_token_len_per_gpu",),
        True,
    ),
    *_optim_rules("actor.optim", A + "optim", lambda s: s.actor_rollout_ref.actor.optim),
    *_optim_rules("critic.optim", "critic.optim", lambda s: s.critic.optim),
    Rule(
        lambda s: s.critic.cuts_by_tokens,
        "micro-batches are cut by tokens (critic.use_dynamic_bsz)",
        ("critic.ppo_micro_batch_size_per_gpu", "critic.forward_micro_batch_size_per_gpu"),
        True,
    ),
    Rule(
        lambda s: not s.critic.cuts_by_tokens,
        "micro-batches are cut by sequences (critic.use_dynamic_bsz)",
        ("critic.ppo_max_token_len_per_gpu", "critic.forward_max_token_len_per_gpu"),
        True,
    ),
    # After the critic's own, so that its reason is the one given.
    Rule(_trains_no_critic, "no critic is trained", ("critic.[!e]*", "trainer.critic_warmup"), True),
    Rule(
        _estimator_is_not({"gdpo"}),
        "the advantage estimator is not gdpo",
        ("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"),
    ),
    Rule(
        lambda s: not s.algorithm.filter_groups.enable,
        "algorithm.filter_groups.enable is false",
        ("algorithm.filter_groups.[!e]*",),
        True,
    ),
    Rule(lambda s: not s.algorithm.use_pf_ppo, "algorithm.use_pf_ppo is false", ("algorithm.pf_ppo.*",), True),
    Rule(
        lambda s: s.algorithm.pf_ppo.reweight_method != "pow",
        "algorithm.pf_ppo.reweight_method is not pow",
        ("algorithm.pf_ppo.weight_pow",),
    ),
    Rule(
        lambda s: s.trainer.device == "cpu",
        "a CPU has nowhere to offload to",
        ("*.param_offload", "*.optimizer_offload", "*.offload_policy"),
        True,
    ),
    Rule(
        lambda s: s.trainer.device == "cpu",
        "it is a share of a GPU's memory; on a CPU KV caches may take a quarter of what is free",
        (R + "gpu_memory_utilization",),
        True,
    ),
    Rule(
        lambda s: s.trainer.nnodes * s.trainer.n_gpus_per_node == 1,
        "one rank holds the whole model",
        ("*.fsdp_size", "*.reshard_after_forward", "*.use_no_sync_for_gradient_accumulation"),
        True,
    ),
    Rule(lambda s: True, "the reference never trains", (F + "*.use_no_sync_for_gradient_accumulation",), True),
    Rule(
        lambda s: s.actor_rollout_ref.rollout.nnodes > 0,
        "with rollout.nnodes servers have devices of their own, which training does not need",
        (R + "free_cache_engine",),
        True,
    ),
    Rule(
        lambda s: s.actor_rollout_ref.rollout.nnodes == 0,
        "rollout.nnodes=0 leaves rollout servers in the training processes",
        (R + "n_gpus_per_node",),
    ),
    Rule(
        lambda s: s.actor_rollout_ref.rollout.nnodes == 0,
        "rollout.nnodes=0 leaves rollout servers in the training processes",
        (R + "checkpoint_engine.update_weights_bucket_megabytes",),
        True,
    ),
    Rule(
        lambda s: s.trainer.launcher == "local",
        "trainer.launcher=local runs all episodes in its own process",
        (R + "agent.num_workers",),
        True,
    ),
    Rule(
        lambda s: s.trainer.launcher == "local",
        "trainer.launcher=local starts no Ray",
        ("ray_kwargs.*", "trainer.master_port_range", "trainer.ray_wait_register_center_timeout"),
        True,
    ),
    Rule(
        lambda s: s.ray_kwargs.ray_init.address is not None,
        "Ray runs already, at ray_kwargs.ray_init.address",
        tuple(f"ray_kwargs.ray_init.{name}" for name in ("num_cpus", "include_dashboard", "object_store_memory")),
    ),
    Rule(
        lambda s: s.actor_rollout_ref.rollout.agent.environment is None and not _rows_come_from_files(s),
        "agent.environment is not set",
        (R + "agent.environment_kwargs*",),
    ),
    Rule(_calls_no_tools, "single_turn_agent takes one turn and calls no tools", (R + "multi_turn.max_*_turns",), True),
    Rule(
        _calls_no_tools,
        "single_turn_agent takes one turn and calls no tools",
        (
            R + "multi_turn.max_parallel_calls",
            R + "multi_turn.max_tool_response_length",
            R + "multi_turn.tool_response_truncate_side",
            R + "multi_turn.max_consecutive_invalid_calls",
            R + "multi_turn.reasoning",
        ),
    ),
    Rule(
        lambda s: s.actor_rollout_ref.rollout.incomplete_groups == "drop",
        "rollout.incomplete_groups is drop",
        (R + "min_group_size",),
    ),
    Rule(
        lambda s: s.trainer.total_training_steps is not None,
        "trainer.total_training_steps is set",
        ("trainer.total_epochs",),
        True,
    ),
    Rule(
        lambda s: s.trainer.resume_mode != "resume_path",
        "trainer.resume_mode is not resume_path",
        ("trainer.resume_from_path",),
    ),
    Rule(
        lambda s: not s.reward.manager_is("rate_limited"),
        "reward.reward_manager.name is not rate_limited (a judge has limits of its own in its settings)",
        ("reward.max_concurrent", "reward.max_rpm", "reward.max_tpm", "reward.estimated_tokens_per_request"),
    ),
    Rule(
        lambda s: s.reward.score_from == "environment",
        "reward.score_from is environment",
        ("reward.components", "reward.custom_reward_function.path", "reward.reward_kwargs"),
    ),
    Rule(
        lambda s: s.reward.max_tpm is None,
        "reward.max_tpm is not set",
        ("reward.estimated_tokens_per_request",),
    ),
    Rule(
        lambda s: s.reward.custom_reward_function.path is None,
        "reward.custom_reward_function.path is not set",
        ("reward.custom_reward_function.name",),
        True,
    ),
    Rule(
        lambda s: s.reward.reward_manager.source == "register",
        "reward.reward_manager.source is register",
        ("reward.reward_manager.module.*",),
    ),
)
