"""The schema by itself: defaults, what is derived from them, reading like a mapping."""

import inspect

import pytest
from pydantic import ValidationError
from ray.runtime_env import RuntimeEnv

from agentverl.settings.actor import ActorSettings, RefSettings
from agentverl.settings.keys import find, keys, lengthen, nearest
from agentverl.settings.known_names import RUNTIME_ENV
from agentverl.settings.micro_batches import MicroBatchLimit
from agentverl.settings.rollout import RolloutSettings
from agentverl.settings.root import Settings
from agentverl.settings.sft import SFTSettings
from agentverl.trajectory import Termination

VERL_DEFAULTS = {
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.train_batch_size": 1024,
    "data.prompt_key": "prompt",
    "data.truncation": "error",
    "algorithm.gamma": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 16384,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.betas": (0.9, 0.999),
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0.0,
    "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": 1,
    "actor_rollout_ref.rollout.multi_turn.format": "hermes",
    "trainer.total_epochs": 30,
    "trainer.save_freq": -1,
    "trainer.val_before_train": True,
    "trainer.resume_mode": "auto",
}


@pytest.mark.parametrize(("path", "value"), VERL_DEFAULTS.items(), ids=str)
def test_defaults_are_verls(path: str, value: object) -> None:
    assert keys(Settings)[path].default == value


@pytest.mark.parametrize("root", [Settings, SFTSettings])
def test_every_default_is_valid_and_every_key_is_a_default(root: type[Settings] | type[SFTSettings]) -> None:
    assert root.model_validate(root().model_dump()) == root()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().trainer.seed = 3  # type: ignore[misc]


def test_sections_read_like_mappings() -> None:
    actor = ActorSettings()
    assert actor["clip_ratio"] == actor.get("clip_ratio") == 0.2
    assert actor.get("no_such_key", 20) == 20
    assert "clip_ratio" in actor
    assert "model_config" not in actor
    with pytest.raises(KeyError, match="clip_ratio"):
        actor["clip"]


def test_micro_batches_are_cut_by_tokens_unless_a_number_of_sequences_is_set() -> None:
    assert ActorSettings().micro_batch_limit == MicroBatchLimit(16384, None)
    assert ActorSettings(ppo_micro_batch_size_per_gpu=4).micro_batch_limit == MicroBatchLimit(None, 4)
    both = ActorSettings(ppo_micro_batch_size_per_gpu=4, use_dynamic_bsz=True)
    assert both.micro_batch_limit == MicroBatchLimit(16384, None)


def test_log_prob_passes_follow_the_actor_unless_they_say_otherwise() -> None:
    by_sequences = ActorSettings(ppo_micro_batch_size_per_gpu=4)
    assert RefSettings().log_prob_limit(ActorSettings()) == MicroBatchLimit(16384, None)
    assert RefSettings().log_prob_limit(by_sequences) == MicroBatchLimit(None, 4)
    assert RefSettings(log_prob_micro_batch_size_per_gpu=9).log_prob_limit(ActorSettings()) == MicroBatchLimit(None, 9)
    assert RefSettings(log_prob_max_token_len_per_gpu=9).log_prob_limit(ActorSettings()) == MicroBatchLimit(9, None)
    assert RefSettings(log_prob_use_dynamic_bsz=True).log_prob_limit(by_sequences) == MicroBatchLimit(16384, None)


def test_tools_choose_the_loop_that_calls_them() -> None:
    assert RolloutSettings().agent_loop == "single_turn_agent"
    assert RolloutSettings.model_validate({"multi_turn": {"tool_config_path": "t.yaml"}}).agent_loop == "tool_agent"
    assert RolloutSettings.model_validate({"agent": {"default_agent_loop": "mine"}}).agent_loop == "mine"


def test_every_termination_has_a_policy_and_failures_are_left_out() -> None:
    policies = RolloutSettings().on_end.policies()
    assert set(policies) == {end.value for end in Termination}
    for end in Termination:
        assert (policies[end.value].loss, policies[end.value].baseline) == (not end.is_failure, not end.is_failure)


def test_precision_names_of_verl_are_taken() -> None:
    settings = Settings.model_validate(
        {"actor_rollout_ref": {"actor": {"fsdp_config": {"model_dtype": "bf16", "dtype": "fp32"}}}}
    )
    assert settings.actor_rollout_ref.actor.fsdp_config.model_dtype == "bfloat16"
    assert settings.actor_rollout_ref.actor.fsdp_config.dtype == "float32"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trainer.total_step", "trainer.total_training_steps"),
        ("data.batch_size", "data.train_batch_size"),
        ("actor_rollout_ref.actor.learning_rate", None),
        ("actor_rollout_ref.rollout.temp", "actor_rollout_ref.rollout.temperature"),
        ("trainer.lr", "actor_rollout_ref.actor.optim.lr"),
        ("trainer.qqqq", None),
    ],
)
def test_the_nearest_key_is_found(typed: str, meant: str | None) -> None:
    assert nearest(Settings, typed) == meant


def test_open_sections_know_what_stands_below_them() -> None:
    key = find(Settings, lengthen("agent.environment_kwargs.a.b", Settings))
    assert key is not None
    assert key.is_open
    assert find(Settings, "trainer.seed.x") is None


def test_lengthening_leaves_other_words_alone() -> None:
    assert lengthen("modelling.path", Settings) == "modelling.path"
    assert lengthen("model.path", SFTSettings) == "model.path"
    assert lengthen("agent", Settings) == "actor_rollout_ref.rollout.agent"


def test_every_key_of_a_runtime_environment_of_ray_is_known() -> None:
    theirs = {*inspect.signature(RuntimeEnv).parameters, *RuntimeEnv.known_fields} - {"kwargs"}
    assert {key for key in theirs if not key.startswith("_")} == RUNTIME_ENV
