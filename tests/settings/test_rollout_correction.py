"""The section of rollout correction: presets, bounds as text, and how both are typed."""

from pathlib import Path
from typing import get_args

import pytest

from agentverl.settings.compose import compose_words
from agentverl.settings.correction_checks import check_correction
from agentverl.settings.rollout_correction import PRESETS, Preset, RolloutCorrectionSettings

C = "algorithm.rollout_correction."


def correction(*words: str) -> RolloutCorrectionSettings:
    return compose_words(words).algorithm.rollout_correction


def test_every_preset_has_values_that_pass() -> None:
    assert set(get_args(Preset)) == set(PRESETS)
    for preset in PRESETS:
        settings = compose_words((f"{C}preset={preset}",))
        assert check_correction(settings) == []
        assert all(settings.algorithm.rollout_correction[key] == value for key, value in PRESETS[preset].items())


def test_a_key_beside_a_preset_wins() -> None:
    found = correction(C + "preset=bypass_pg_is", C + "rollout_is_threshold=3", C + "rollout_is=token")
    assert (found.rollout_is, found.rollout_is_threshold, found.loss_type) == ("token", "3", "reinforce")
    assert correction(C + "preset=decoupled_token_is", C + "rollout_is=null").rollout_is is None


@pytest.mark.parametrize("typed", ["0.5_2", "'0.5_2'", "1_2"])
def test_two_bounds_are_no_number_with_grouped_digits(typed: str) -> None:
    found = correction(C + "rollout_is=token", f"{C}rollout_is_threshold={typed}")
    assert found.rollout_is_threshold == typed.strip("'")


def test_numbers_of_a_file_are_bounds_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    section = "{rollout_is: token, rollout_is_threshold: 3}"
    file.write_text(f"defaults: [quickstart, _self_]\nalgorithm: {{rollout_correction: {section}}}\n")
    assert correction(str(file)).rollout_is_threshold == "3.0"


def test_what_belongs_to_a_key_that_is_off_is_told(caplog: pytest.LogCaptureFixture) -> None:
    correction(C + "rollout_is_threshold=3", C + "loss_type=reinforce", C + "rollout_is_batch_normalize=false")
    assert "rollout_is_threshold has no effect: algorithm.rollout_correction.rollout_is is not set" in caplog.text
    assert "loss_type has no effect: algorithm.rollout_correction.bypass_mode is false" in caplog.text
    assert "batch_normalize" not in caplog.text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["actor.policy_loss.loss_mode=gpg", "actor.clip_ratio=0.3"],
            "clip_ratio has no effect: the policy loss does not",
        ),
        (
            ["actor.policy_loss.loss_mode=sapo", "actor.loss_agg_mode=token-sum"],
            "the policy loss is a mean over sequences",
        ),
        (
            ["actor.clip_ratio=0.3"],
            "clip_ratio has no effect: with one optimiser step",
        ),
        (["actor.clip_ratio=0.3", "actor.ppo_epochs=2"], ""),
        ([C + "preset=bypass_pg_is", "actor.clip_ratio_c=4"], "clip_ratio_c has no effect"),
        ([C + "preset=bypass_ppo_clip", "actor.clip_ratio_c=4"], ""),
        ([C + "preset=bypass_ppo_clip", "rollout.log_prob_max_token_len_per_gpu=9000"], "computes no old log-prob"),
    ],
)
def test_keys_that_the_loss_does_not_read_are_told(
    words: list[str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    compose_words(words)
    assert (told in caplog.text) if told else not caplog.text
