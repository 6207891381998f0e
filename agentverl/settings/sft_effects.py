"""Which keys have no effect in which set-up of supervised fine-tuning."""

from agentverl.settings.rule import Rule
from agentverl.settings.sft import SFTSettings

SFT_RULES: tuple[Rule[SFTSettings], ...] = (
    Rule(
        lambda s: s.data.use_dynamic_bsz,
        "micro-batches are cut by tokens (data.use_dynamic_bsz)",
        ("data.micro_batch_size_per_gpu",),
        True,
    ),
    Rule(
        lambda s: not s.data.use_dynamic_bsz,
        "micro-batches are cut by sequences (data.use_dynamic_bsz)",
        ("data.max_token_len_per_gpu",),
        True,
    ),
    Rule(
        lambda s: not s.data.val_files, "data.val_files is not set", ("data.val_max_samples", "trainer.test_freq"), True
    ),
    Rule(
        lambda s: s.optim.lr_warmup_steps >= 0, "optim.lr_warmup_steps is set", ("optim.lr_warmup_steps_ratio",), True
    ),
    Rule(
        lambda s: s.optim.lr_scheduler_type == "constant",
        "optim.lr_scheduler_type is constant",
        ("optim.min_lr_ratio",),
        True,
    ),
    Rule(
        lambda s: s.optim.lr_scheduler_type != "cosine",
        "optim.lr_scheduler_type is not cosine",
        ("optim.num_cycles",),
        True,
    ),
    Rule(lambda s: s.optim.lr_scheduler_type != "wsd", "optim.lr_scheduler_type is not wsd", ("optim.stable_ratio",)),
    Rule(lambda s: True, "on a CPU fine-tuning always is", ("trainer.deterministic",), True),
    Rule(lambda s: True, "no rollout server runs beside", ("engine.param_offload", "engine.optimizer_offload"), True),
    Rule(
        lambda s: True,
        "one rank holds the whole model",
        ("engine.fsdp_size", "engine.reshard_after_forward", "engine.use_no_sync_for_gradient_accumulation"),
        True,
    ),
    Rule(lambda s: s.trainer.device == "cpu", "a CPU has nowhere to offload to", ("engine.offload_policy",), True),
    Rule(lambda s: True, "fine-tuning waits for its checkpoints", ("checkpoint.async_save",)),
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
)
