"""Command lines of verl's users: taken, warned about once, or refused naming the right key."""

import logging
from pathlib import Path

import pytest

from agentverl.errors import SettingsError
from agentverl.settings.compose import compose
from agentverl.settings.keys import find, keys
from agentverl.settings.root import Settings
from agentverl.settings.spellings import FOREIGN, RENAMED, VALUES


def test_a_command_line_as_verls_users_write_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / name for name in ("train.parquet", "test.parquet")]
    for file in files:
        file.touch()
    run_yaml = tmp_path / "run.yaml"
    run_yaml.write_text("{}")
    words = [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={files[0]}",
        f"data.val_files=['{files[1]}']",
        "data.train_batch_size=1024",
        "data.max_prompt_length=512",
        "data.max_response_length=1024",
        "data.filter_overlong_prompts=True",
        "data.truncation='error'",
        "data.return_raw_chat=True",
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=256",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.001",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.mode=async",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
        "actor_rollout_ref.rollout.n=5",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "algorithm.use_kl_in_reward=False",
        "trainer.critic_warmup=0",
        'trainer.logger=["console","wandb"]',
        "trainer.project_name=verl_grpo_example_gsm8k",
        "trainer.experiment_name=qwen3_8b",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.save_freq=20",
        "trainer.test_freq=5",
        "trainer.total_epochs=15",
        "trainer.use_v1=True",
        "+ray_kwargs.ray_init.num_cpus=4",
    ]
    with caplog.at_level(logging.WARNING, "agentverl.settings"):
        settings = compose(run_yaml, words)
    assert settings.data.overlong_policy == "drop"
    assert settings.actor_rollout_ref.actor.micro_batch_limit.max_sequences == 32
    assert settings.actor_rollout_ref.old_log_prob_limit.max_sequences == 32
    assert len(caplog.records) == 1
    warned = caplog.records[0].getMessage()
    for key in ("tensor_model_parallel_size=2", "ray_kwargs.ray_init.num_cpus"):
        assert key in warned
    for harmless in ("return_raw_chat", "use_remove_padding", "critic_warmup", "use_v1", "mode=", "truncation"):
        assert harmless not in warned


def test_a_command_line_without_foreign_keys_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    compose(None, ["trainer.seed=1"])
    assert not caplog.records


@pytest.mark.parametrize(
    ("word", "same_as"),
    [
        ("actor.lr=0.5", "actor.optim.lr=0.5"),
        ("actor.optim.clip_grad=0.5", "actor.grad_clip=0.5"),
        ("actor.optim.warmup_style=cosine", "actor.optim.lr_scheduler_type=cosine"),
        ("rollout.prompt_length=99", "data.max_prompt_length=99"),
        ("rollout.response_length=99", "data.max_response_length=99"),
        ("model.backend=fsdp2", "actor.strategy=fsdp2"),
        ("rollout.full_determinism=true", "trainer.deterministic=true"),
        ("actor.loss_agg_mode=sequence-mean", "actor.loss_agg_mode=seq-mean-token-mean"),
        ("reward_model.reward_manager=naive", "reward.reward_manager.name=naive"),
        ("reward_model.overlong_buffer.len=64", "reward.reward_kwargs.overlong_buffer_cfg.len=64"),
        ("data.tokenizer=/x", "model.tokenizer_path=/x"),
    ],
)
def test_other_spellings_mean_the_same(word: str, same_as: str) -> None:
    assert compose(None, [word]) == compose(None, [same_as])


def test_the_kl_of_the_documents_means_the_one_of_the_code() -> None:
    settings = compose(None, ["actor.use_kl_loss=true", "actor.kl_loss_type=low_var"])
    assert settings.actor_rollout_ref.actor.kl_loss_type == "low_var_kl"


@pytest.mark.parametrize("word", ["rollout.async_weight_update=true", "rollout.name=tensorrt-llm"])
def test_spellings_of_what_is_not_there_are_refused(word: str) -> None:
    with pytest.raises(SettingsError):
        compose(None, [word])


def test_clip_ratio_alone_takes_effect() -> None:
    actor = compose(None, ["actor.clip_ratio=0.3"]).actor_rollout_ref.actor
    assert (actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high) == (0.3, None, None)


@pytest.mark.parametrize(
    "words",
    [
        ["actor.clip_ratio=0.3", "actor.clip_ratio_low=0.2", "actor.clip_ratio_high=0.28"],
        ["actor.kl_loss_coef=0.1"],
        ["algorithm.kl_ctrl.kl_coef=0.1"],
        ["actor.use_dynamic_bsz=true", "actor.ppo_micro_batch_size_per_gpu=4"],
        ["ref.log_prob_max_token_len_per_gpu=5000"],
        ["agent.num_workers=4"],
        ["rollout.checkpoint_engine.update_weights_bucket_megabytes=2048"],
    ],
)
def test_a_key_of_habit_without_effect_gives_one_warning(words: list[str], caplog: pytest.LogCaptureFixture) -> None:
    compose(None, words)
    assert len(caplog.records) == 1
    assert "has no effect: " in caplog.records[0].getMessage()


def test_the_table_leads_to_keys_that_exist_and_hides_none() -> None:
    ours = keys(Settings)
    assert all(find(Settings, path) is not None for path in RENAMED.values())
    assert not set(RENAMED) & set(ours)
    assert set(VALUES) <= set(ours)
    plain = {entry.pattern for entry in FOREIGN if "*" not in entry.pattern}
    assert not plain & set(ours)
