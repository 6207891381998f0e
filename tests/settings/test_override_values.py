"""Values of `key=value` words: what was typed is what arrives, whatever stands in it."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentverl.errors import SettingsError
from agentverl.settings.compose import compose
from agentverl.settings.merge import merge
from agentverl.settings.overrides import parse
from agentverl.settings.root import Settings

VALUES = [
    "a=b",
    "two words",
    "f(x)",
    "(x)",
    "a,b",
    "it's",
    'say "hi"',
    "https://host:80/path?q=1&r=2#part",
    "/data/run (1)/lr=1e-3,seed=2",
    "007",
    "1e-3",
    "true",
    "None",
    "~/models",
    "$HOME/x",
    "50%",
    "back\\slash",
    "ends with \\",
    "quote after \\'",
    "What is 3 * (4 - 1)?",
    "ümläut 漢字",
    "@file",
    "choice(a,b)",
    "-1",
]


@pytest.mark.parametrize("value", VALUES)
def test_text_arrives_as_it_was_typed(value: str) -> None:
    assert compose(None, [f"trainer.experiment_name={value}"]).trainer.experiment_name == value


@pytest.mark.parametrize("value", ["a=b", "two words (x)", "a,b", "it's", "/p/x=1"])
def test_text_arrives_in_a_plugins_own_settings_too(value: str) -> None:
    settings = compose(None, [f"agent.environment_kwargs.topic={value}"])
    assert settings.actor_rollout_ref.rollout.agent.environment_kwargs == {"topic": value}


@settings(max_examples=200, deadline=None)
@given(
    st.text(
        alphabet=string.ascii_letters + string.digits + " =,()'\"\\/:;#@!%&*+-?<>|~^`.äß漢", min_size=1, max_size=12
    )
)
def test_any_text_without_brackets_and_references_arrives(value: str) -> None:
    value = value.strip()
    if value == "null" or value[:1] in "'\"":
        return
    assert parse([f"trainer.project_name={value}"], Settings).overrides == [("trainer.project_name", value)]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("trainer.logger=[console,file]", ["console", "file"]),
        ('trainer.logger=["console","file"]', ["console", "file"]),
        ("trainer.logger='[console]'", ["[console]"]),
        ("trainer.logger=console", ["console"]),
    ],
)
def test_lists_are_written_in_brackets(word: str, value: list[str]) -> None:
    merged = merge(parse([word], Settings), Settings)
    assert Settings.model_validate(merged.chosen).trainer.logger == value


def test_quotes_around_a_text_are_not_part_of_it() -> None:
    assert compose(None, ["trainer.experiment_name='null'"]).trainer.experiment_name == "null"
    assert compose(None, ['trainer.experiment_name="a b"']).trainer.experiment_name == "a b"


def test_null_unsets_a_text() -> None:
    assert compose(None, ["trainer.default_local_dir=null"]).trainer.default_local_dir is None


def test_numbers_and_mappings_arrive_in_open_sections_with_their_types() -> None:
    words = ["agent.environment_kwargs.low=2", "agent.environment_kwargs.weights={a: 0.5, b: [1, 2]}"]
    kwargs = compose(None, words).actor_rollout_ref.rollout.agent.environment_kwargs
    assert kwargs == {"low": 2, "weights": {"a": 0.5, "b": [1, 2]}}


def test_a_list_that_cannot_be_read_is_answered_with_how_to_quote() -> None:
    with pytest.raises(SettingsError, match=r"\"agent\.environment_kwargs\.ops=\['a=b','c d'\]\""):
        compose(None, ["agent.environment_kwargs.ops=[a=b]"])
    kwargs = compose(
        None, ["agent.environment_kwargs.ops=['a=b','c d']"]
    ).actor_rollout_ref.rollout.agent.environment_kwargs
    assert kwargs == {"ops": ["a=b", "c d"]}


def test_endings_may_be_written_with_a_colon() -> None:
    on_end = compose(None, ["rollout.on_end.error:tool.loss=true"]).actor_rollout_ref.rollout.on_end
    assert on_end.error_tool.loss is True
    assert on_end.error_tool.baseline is False
