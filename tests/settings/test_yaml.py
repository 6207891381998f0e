"""The effective configuration as YAML: complete, readable again, and comparable."""

from pathlib import Path

import pytest
import yaml

from agentverl.settings.compose import compose, compose_sft, differences, read_yaml, to_yaml
from agentverl.settings.idle import idle_keys
from agentverl.settings.keys import keys
from agentverl.settings.root import Settings
from agentverl.settings.trees import leaves

SET_UPS = [
    [],
    ["trainer.seed=3", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.01"],
    ["actor.policy_loss.loss_mode=dro", "actor.policy_loss.dro_beta=0.1"],
    ["algorithm.rollout_correction.preset=decoupled_token_icepop"],
    ["algorithm.rollout_correction.preset=bypass_pg_is", "algorithm.rollout_correction.rollout_is_threshold=0.5_2"],
    ["actor.clip_ratio_low=0.1", "actor.clip_ratio_high=0.3", "actor.ppo_epochs=2"],
    ["actor.ppo_micro_batch_size_per_gpu=4", "algorithm.use_kl_in_reward=true"],
    ["trainer.experiment_name=007", "agent.environment_kwargs.a=[1,2]", "rollout.on_end.error:tool.score=-1"],
    ["actor.optim.lr_scheduler_type=cosine", "actor.optim.num_cycles=1", "trainer.test_freq=-1"],
]


@pytest.mark.parametrize("words", SET_UPS, ids=str)
def test_what_is_written_composes_to_the_same_effect(
    words: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = compose(None, words)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(settings))
    again = compose(path)
    assert to_yaml(again) == to_yaml(settings)
    assert differences(read_yaml(path), settings) == []
    assert not caplog.records


def test_every_key_with_an_effect_is_written_and_no_other() -> None:
    settings = compose(None, ["actor.use_kl_loss=true"])
    written = {path for path, _ in leaves(yaml.safe_load(to_yaml(settings)))}
    expected = {key.path for key in keys(Settings).values() if key.section is None} - set(idle_keys(settings))
    assert written == expected
    assert "actor_rollout_ref.actor.kl_loss_coef" in written
    assert "actor_rollout_ref.actor.tau_pos" not in written


def test_differences_name_the_keys_with_both_values() -> None:
    changed = differences(compose(), compose(None, ["trainer.seed=1", "rollout.n=4"]))
    assert changed == ["actor_rollout_ref.rollout.n: 8 -> 4", "trainer.seed: 0 -> 1"]


def test_placement_and_run_length_are_no_differences() -> None:
    longer = compose(None, ["trainer.total_training_steps=99", "reward.num_workers=2", "trainer.resume_mode=disable"])
    assert differences(compose(), longer) == []
    by_epochs = compose(None, ["~trainer.total_training_steps", "trainer.total_epochs=3"])
    assert differences(compose(), by_epochs) == []


def test_fine_tuning_is_written_and_read_too(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    settings = compose_sft(["model.path=nano", f"data.train_files={rows}"])
    path = tmp_path / "sft.yaml"
    path.write_text(to_yaml(settings))
    assert compose_sft([str(path)]) == settings
    assert "micro_batch_size_per_gpu" not in path.read_text()
