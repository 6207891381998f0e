"""Components reach the metrics under their names, and what they need is checked before anything starts."""

import math
from pathlib import Path

import pytest

from agentverl.errors import BadInputError
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.settings.compose import compose_words
from agentverl.trainer.preparation import prepare
from agentverl.trainer.reward_metrics import component_metrics
from agentverl.trainer.validation import outcome_of
from tests.trainer.command import rows


def results() -> list[EpisodeResult]:
    """Of one prompt; components are present in some only."""
    episode = Episode(uid="0", sample=0, row={"data_source": "d"}, sampling_params={})
    return [
        EpisodeResult(episode=episode, score=1.0, components={"form": 1.0, "judge": 0.5, "judge/note": "good"}),
        EpisodeResult(episode=episode, score=0.0, components={"form": 0.0, "form/passed": False, "judge": math.nan}),
        EpisodeResult(episode=episode, score=0.0),
    ]


def test_training_reports_each_component_over_those_that_have_it() -> None:
    metrics = component_metrics(results())
    assert metrics == {
        "reward/form/mean": 0.5,
        "reward/form/max": 1.0,
        "reward/form/min": 0.0,
        "reward/judge/mean": 0.5,
        "reward/judge/max": 0.5,
        "reward/judge/min": 0.5,
        "reward/form/passed/mean": 0.0,
        "reward/form/passed/max": 0.0,
        "reward/form/passed/min": 0.0,
    }


def test_validation_reports_each_component_over_those_that_have_it() -> None:
    metrics = outcome_of(results()).metrics
    assert metrics["val-aux/d/form/mean@2"] == 0.5
    assert metrics["val-aux/d/judge/mean@1"] == 0.5
    assert metrics["val-core/d/reward/mean@3"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("components", "said"),
    [
        ("[{name: world,kind: environment}]", "needs an environment's score, but rows have no environment"),
        ("[{name: right}]", "reward.components: right: no reward function for data_source 'unheard of'"),
        ("[{name: right,settings: {function: length,maximum: few}}]", "components: right: .*maximum='few': .*integer"),
        ("[{name: right,settings: {function: gsm8,method: x}}]", "did you mean 'gsm8k'"),
        (
            "[{name: judge,kind: judge,settings: {model: m}}]",
            "judge: settings of kind judge: key 'base_url' is missing",
        ),
    ],
)
def test_what_components_need_is_checked_at_the_start(
    components: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = rows().replace('"data_source": "openai/gsm8k"', '"data_source": "unheard of"')
    Path("rows.jsonl").write_text(text)
    words = (
        "agent.environment=null",
        "data.train_files=rows.jsonl",
        "data.val_files=rows.jsonl",
        "data.train_batch_size=1",
    )
    settings = compose_words((*words, "actor.ppo_mini_batch_size=1", f"reward.components={components}"))
    with pytest.raises(BadInputError, match=said):
        prepare(settings, splits=("train",))


def test_a_component_for_a_tool_that_the_run_lacks_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    names = "names: [calculater,calculator]"
    prepare(compose_words([f"reward.components=[{{name: tools,kind: tool,settings: {{{names}}}}}]"]))
    assert caplog.text.count("this run has no tool") == 1
    assert "tools: this run has no tool 'calculater' (nearest: calculator)" in caplog.text
