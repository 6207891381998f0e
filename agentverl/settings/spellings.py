"""The one table of other spellings: keys and values of verl and of its documents that are not ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from agentverl.settings.keys import find
from agentverl.settings.section import Section
from agentverl.settings.trees import Tree, leaves, put, take

A = "actor_rollout_ref.actor."
M = "actor_rollout_ref.model."
R = "actor_rollout_ref.rollout."

RENAMED: Mapping[str, str] = {
    "data.tokenizer": M + "tokenizer_path",
    "data.tool_config_path": R + "multi_turn.tool_config_path",
    "data.function_tool_path": R + "multi_turn.function_tool_path",
    "custom_reward_function.path": "reward.custom_reward_function.path",
    "custom_reward_function.name": "reward.custom_reward_function.name",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.max_concurrent": "reward.max_concurrent",
    "reward_model.max_rpm": "reward.max_rpm",
    "reward_model.max_tpm": "reward.max_tpm",
    "reward_model.estimated_tokens_per_request": "reward.estimated_tokens_per_request",
    "reward_model.timeout": "reward.timeout_seconds",
    **{
        f"reward_model.overlong_buffer.{name}": f"reward.reward_kwargs.overlong_buffer_cfg.{name}"
        for name in ("enable", "len", "penalty_factor", "log")
    },
    M + "backend": A + "strategy",
    A + "lr": A + "optim.lr",
    A + "optim.warmup_style": A + "optim.lr_scheduler_type",
    A + "optim.clip_grad": A + "grad_clip",
    R + "prompt_length": "data.max_prompt_length",
    R + "response_length": "data.max_response_length",
    R + "full_determinism": "trainer.deterministic",
    A + "fsdp_config.full_determinism": "trainer.deterministic",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    "critic.optim.clip_grad": "critic.grad_clip",
    "ray_init.num_cpus": "ray_kwargs.ray_init.num_cpus",
}
"""Accepted under the other name."""

VALUES: Mapping[str, Mapping[str, str]] = {
    A + "kl_loss_type": {"low_var": "low_var_kl"},
    "algorithm.kl_penalty": {"low_var": "low_var_kl"},
    "critic.loss_agg_mode": {"sequence-mean": "seq-mean-token-mean", "token_mean": "token-mean"},
    A + "loss_agg_mode": {"sequence-mean": "seq-mean-token-mean", "token_mean": "token-mean"},
    R + "name": {"huggingface": "hf", "transformers": "hf"},
}
"""Accepted in place of the value that they mean."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A key of verl that has no effect here.

    `harmless` values ask for what happens anyway and pass in silence. Other values give one warning where users of verl
    type the key from habit, and an error where they ask for something that would not happen.
    """

    pattern: str
    reason: str
    harmless: tuple[Any, ...] = ()
    habit: bool = False


_WHOLE_SEQUENCES = "each rank trains on whole sequences"
_WAITING = "the engine has a limit of its own for how long ranks wait for each other"
_FSDP2 = "FSDP2 cuts layer by layer, gathers the next one early, and keeps original parameters"
_PACKED = "sequences are always packed without padding"
_HF = "it belongs to servers on GPUs; rollout.name=hf has no such thing"
_NO_VISION = "this version reads text only"


def _habit(reason: str, *patterns: str, harmless: tuple[Any, ...] = ()) -> list[Foreign]:
    return [Foreign(pattern, reason, harmless, habit=True) for pattern in patterns]


def _refused(reason: str, *patterns: str, harmless: tuple[Any, ...] = (None, False)) -> list[Foreign]:
    return [Foreign(pattern, reason, harmless) for pattern in patterns]


_RECIPE = "on the command line write recipe=NAME, in a YAML defaults: [NAME, _self_]"

FOREIGN: tuple[Foreign, ...] = (
    *_refused(_RECIPE, "recipe", harmless=()),
    *_habit("the conversation always reaches the agent loop", "data.return_raw_chat", harmless=(True,)),
    *_habit("nothing reads it", "data.return_raw_input_ids", "data.return_full_prompt", harmless=(False,)),
    *_habit("rows are read in this process", "data.dataloader_num_workers", "data.filter_overlong_prompts_workers"),
    *_habit("validation takes all rows at once", "data.val_batch_size", harmless=(None,)),
    *_habit("files are read where they are", "data.use_shm", M + "use_shm", harmless=(False,)),
    *_habit(_NO_VISION, "data.return_multi_modal_inputs"),
    *_habit(_NO_VISION, A + "freeze_vision_tower", harmless=(False,)),
    *_refused(
        _NO_VISION,
        "data.image_key",
        "data.video_key",
        "data.audio_key",
        "data.image_patch_size",
        "data.mm_processor_kwargs",
    ),
    *_refused("set data.train_batch_size", "data.gen_batch_size"),
    *_refused("set model.trust_remote_code", "data.trust_remote_code"),
    *_refused("write the rows to a file, or an environment that makes tasks", "data.custom_cls.path"),
    *_refused("it belongs to data.custom_cls.path", "data.custom_cls.name"),
    *_refused("set actor.ppo_micro_batch_size_per_gpu", A + "ppo_micro_batch_size"),
    *_refused("set rollout.log_prob_micro_batch_size_per_gpu", R + "log_prob_micro_batch_size"),
    *_refused("set ref.log_prob_micro_batch_size_per_gpu", "actor_rollout_ref.ref.log_prob_micro_batch_size"),
    *_refused("set rollout.max_model_len", R + "max_length", R + "context_length"),
    *_habit(_PACKED, M + "use_remove_padding", A + "use_remove_padding", harmless=(True,)),
    *_habit("the engine runs eagerly", A + "use_torch_compile", "*.fsdp_config.use_torch_compile", harmless=(False,)),
    *_habit("log-probabilities are always computed in chunks", "*.use_fused_kernels", M + "fused_kernel_options.*"),
    *_habit("entropy is always computed in chunks", "*.entropy_from_logits_with_chunking*", "*.entropy_checkpointing"),
    *_habit("the engine has its own kernels", M + "use_liger", harmless=(False,)),
    *_habit("shared prompts are not merged", A + "use_prefix_grouper", harmless=(False,)),
    *_habit("nothing is padded", "*.pad_to_length", "*.pad_to_length_bucket", harmless=(False,)),
    *_habit("the run's length decides", A + "optim.total_training_steps", harmless=(-1, None)),
    *_habit("schedules count from the first step", A + "optim.zero_indexed_step", harmless=(True,)),
    *_habit("trainer.seed is the one seed", "*.fsdp_config.seed"),
    *_habit(_FSDP2, "*.fsdp_config.forward_prefetch", "*.fsdp_config.use_orig_params", "*.fsdp_config.wrap_policy.*"),
    *_habit("the reference never trains", "*.fsdp_config.forward_only"),
    *_habit("loading is always strict", "*.checkpoint.strict", harmless=(True,)),
    *_habit(_WHOLE_SEQUENCES, "*.ulysses_sequence_parallel_size", harmless=(1,)),
    *_habit("each server holds the whole model on one device", R + "tensor_model_parallel_size", harmless=(1,)),
    *_refused(
        "each server has one device; trainer.n_gpus_per_node and rollout.nnodes say how many servers there are",
        R + "data_parallel_size",
        R + "expert_parallel_size",
        R + "pipeline_model_parallel_size",
        harmless=(1,),
    ),
    *_refused("the critic's checkpoint is written before the run goes on", "critic.checkpoint.async_save"),
    *_refused("it comes with a later version", M + "enable_activation_offload"),
    *_refused("LoRA comes with a later version", M + "lora_rank", M + "lora.rank", harmless=(0,)),
    *_refused(
        "LoRA comes with a later version",
        M + "lora_alpha",
        M + "target_modules",
        M + "exclude_modules",
        M + "lora_adapter_path",
        M + "lora.*",
    ),
    *_refused(
        "it comes with a later version",
        M + "tiled_mlp.*",
        M + "mtp.*",
        "*.qat.*",
        "*.turbo_config.*",
        "*.router_replay.*",
    ),
    *_refused("set model.path to a folder that holds its config.json", M + "hf_config_path"),
    *_refused("install the module as a plugin, or name it as package.module:Attribute", M + "external_lib"),
    *_habit("it is computed where the estimator needs it", A + "calculate_sum_pi_squared"),
    *_refused("the one training engine of this version is fsdp", "*.megatron.*", "*.veomni.*", "*.torchtitan.*"),
    *_refused(
        "profile with the tools of PyTorch; the times of each stage are in metrics.jsonl",
        "*.profiler.*",
        "global_profiler.*",
    ),
    *_refused(
        "servers in processes of their own are set by rollout.nnodes",
        "actor_rollout_ref.hybrid_engine",
        harmless=(True,),
    ),
    *_habit(_WAITING, "actor_rollout_ref.nccl_timeout", "critic.nccl_timeout"),
    *_refused(
        "the reference has the actor's engine", "actor_rollout_ref.ref.strategy", harmless=("fsdp", "fsdp2", None)
    ),
    *_refused("servers are always asynchronous", R + "mode", harmless=("async",)),
    *_refused("set rollout.temperature", R + "do_sample", harmless=(True,)),
    *_habit("log-probabilities are always recorded", R + "calculate_log_probs", harmless=(True,)),
    *_habit(_HF, R + "enforce_eager", R + "cudagraph_capture_sizes"),
    *_habit(_HF, R + "enable_chunked_prefill", R + "enable_prefix_caching", R + "load_format"),
    *_habit(_HF, R + "layered_summon", R + "scheduling_policy", R + "disable_log_stats", R + "skip_tokenizer_init"),
    *_habit(_HF, R + "multi_stage_wake_up", R + "over_sample_rate"),
    *_refused(
        "log-probabilities are those of the policy at the turn's temperature",
        R + "logprobs_mode",
        harmless=("processed_logprobs",),
    ),
    *_refused("weights are synchronous in this version", R + "async_weight_update", "trainer.async_weight_update"),
    *_refused("set rollout.router", R + "router_config_path"),
    *_habit("checkpoint engines are made without arguments", R + "checkpoint_engine.engine_kwargs"),
    *_refused(
        "name the class in rollout.checkpoint_engine.backend",
        R + "checkpoint_engine.custom_backend_module",
        R + "checkpoint_manager_class",
    ),
    *_refused("the run's journal holds every trajectory: agentverl show RUN", R + "trace.*"),
    *_refused(
        "it comes with a later version", R + "prometheus.*", R + "quantization*", R + "mtp.*", R + "disaggregation.*"
    ),
    *_refused(
        "it comes with a later version",
        R + "enable_rollout_routing_replay",
        R + "moe_load_balance_metrics_interval",
        harmless=(False, 0),
    ),
    *_habit("the agent loop decides; set agent.default_agent_loop", R + "multi_turn.enable", harmless=(True,)),
    *_habit(
        "nothing reads it",
        R + "multi_turn.use_inference_chat_template",
        R + "multi_turn.tokenization_sanity_check_mode",
    ),
    *_habit("nothing reads it", R + "multi_turn.num_repeat_rollouts", harmless=(None,)),
    *_refused("environments take its place: agent.environment", R + "multi_turn.interaction_config_path"),
    *_refused("the runner of episodes is not replaced; write an agent loop", R + "agent.agent_loop_manager_class"),
    *_refused("name the server in rollout.name", R + "agent.custom_async_server.*"),
    *_refused("set critic.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size"),
    *_refused("set critic.forward_micro_batch_size_per_gpu", "critic.forward_micro_batch_size"),
    *_habit(_PACKED, "critic.model.use_remove_padding", harmless=(True,)),
    *_habit("rollout.n holds for the critic too", "critic.rollout_n"),
    *_habit(_FSDP2, "critic.fsdp.forward_prefetch", "critic.fsdp.use_orig_params", "critic.fsdp.wrap_policy.*"),
    *_habit("files are read where they are", "critic.model.use_shm", harmless=(False,)),
    *_habit("the policy's tokenizer is the only one", "critic.model.tokenizer_path"),
    *_habit("the run's length decides", "critic.optim.total_training_steps", harmless=(-1, None)),
    *_habit("trainer.seed is the one seed", "critic.data_loader_seed", "critic.fsdp.seed"),
    *_refused("set critic.fsdp", "critic.model.fsdp_config.*", "critic.fsdp_config.*"),
    *_refused(
        "LoRA comes with a later version", "critic.model.lora*", "critic.model.target_modules", harmless=(0, None)
    ),
    *_habit(
        "the critic is saved and kept with the actor: trainer.max_actor_ckpt_to_keep",
        "trainer.max_critic_ckpt_to_keep",
        harmless=(None,),
    ),
    *_habit("refilled prompts are rolled out as they are needed", "algorithm.filter_groups.max_inflight_gen_batches"),
    *_habit(
        "in bypass mode the metrics rollout_corr/* say how far the policies are apart",
        "algorithm.rollout_correction.debug_rollout_actor_probs",
        harmless=(False,),
    ),
    *_refused(
        "a reward model is a component: reward.components=[{name: preference, kind: reward_model, settings: {...}}]",
        "reward.reward_model.enable",
        "reward_model.enable",
    ),
    *_habit("it belongs to a reward model, which is off", "reward.reward_model.*", "reward_model.*"),
    *_refused(
        "programs run in a sandbox of bubblewrap, by the scorer `code`", "reward.sandbox_fusion.*", "sandbox_fusion.*"
    ),
    *_habit("there is one trainer", "trainer.use_v1", "trainer.use_legacy_worker_impl", harmless=(True, "disable")),
    *_refused("this version's one schedule is synchronous", "trainer.v1.trainer_mode", harmless=("sync",)),
    *_habit("it belongs to asynchronous schedules", "trainer.v1.*"),
    *_habit("micro-batches are always balanced", "trainer.balance_batch", harmless=(True,)),
    *_habit(
        "it belongs to preemptible clusters; SIGTERM saves and exits with 75",
        "trainer.esi_redundant_time",
        harmless=(0,),
    ),
    *_refused("copy the run's folder afterwards", "trainer.default_hdfs_dir", "trainer.del_local_ckpt_after_load"),
    *_refused(
        "a logger sees every step: trainer.logger=[console,package.module:Class]", "trainer.checkpoint_callback_class"
    ),
    *_refused("`ray timeline` writes it", "ray_kwargs.timeline_json_file", harmless=(None,)),
    *_habit("samples go through the controller", "transfer_queue.*"),
    *_refused("distillation comes with a later version", "distillation.enabled"),
    *_habit("it belongs to distillation, which is off", "distillation.*"),
    *_habit("the journal holds every rollout: agentverl rescore", "skip.*"),
)
"""The first entry that matches a key decides."""


_SFT_FOREIGN: tuple[Foreign, ...] = (
    *_refused(_RECIPE, "recipe", harmless=()),
    *_habit(_PACKED, "data.pad_mode", harmless=("no_padding",)),
    *_habit(_PACKED, "model.use_remove_padding", "engine.use_remove_padding", harmless=(True,)),
    *_habit("rows are read in this process", "data.num_workers"),
    *_habit("conversations are encoded as a whole", "data.ignore_input_ids_mismatch"),
    *_habit("the engine runs eagerly", "engine.use_torch_compile", harmless=(False,)),
    *_habit(_WHOLE_SEQUENCES, "engine.ulysses_sequence_parallel_size", harmless=(1,)),
    *_refused("LoRA comes with a later version", "model.lora*", harmless=(0, None)),
    *_refused("write the conversations to a file", "data.custom_cls.*"),
    *_refused("set data.apply_chat_template_kwargs", "data.enable_thinking_key"),
)


def accept_foreign(tree: Tree, root: type[Section]) -> tuple[list[str], list[str]]:
    """Take verl's keys without effect out of a tree and put our values for its own: (problems, notes)."""
    problems: list[str] = []
    notes: list[str] = []
    table = FOREIGN if root.__name__ == "Settings" else _SFT_FOREIGN
    for path, value in list(leaves(tree)):
        entry = next((entry for entry in table if fnmatchcase(path, entry.pattern)), None)
        if isinstance(value, str) and value in VALUES.get(path, {}):
            put(tree, path, VALUES[path][value])
        if entry is None or find(root, path) is not None:
            continue
        take(tree, path)
        if value in entry.harmless:
            continue
        (notes if entry.habit else problems).append(f"{path}={value} has no effect: {entry.reason}")
    return problems, notes
