"""Entries of `reward.components` are checked like keys: by their place, with the nearest name."""

import pytest

from agentverl.errors import SettingsError
from agentverl.settings.compose import compose_words
from agentverl.settings.keys import find
from agentverl.settings.root import Settings


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("reward.components=[{name: a,weight: x}]", "reward.components.0.weight: got 'x'; expected a number"),
        ("reward.components=[{name: a},{name: b,wieght: 1}]", "reward.components.1.wieght: .* nearest: weight"),
        ("reward.components=[{weight: 1}]", "reward.components.0.name: .*expected a value"),
        ("reward.components=[{name: score}]", "score is reserved"),
        ("reward.components=[{name: a},{name: a}]", "a stands twice"),
        ("reward.components=five", "reward.components: got 'five'; expected a list"),
        ("reward.max_rpm=10", "reward.max_rpm has no effect: reward.reward_manager.name is not rate_limited"),
        ("reward.reward_manager.name=rate_limited", "a limit for the manager rate_limited"),
    ],
)
def test_wrong_entries(word: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        compose_words((word,))


def test_arguments_of_a_function_have_no_effect_beside_components() -> None:
    with pytest.raises(SettingsError, match="no reward_kwargs beside components"):
        compose_words(("reward.components=[{name: a}]", "reward.reward_kwargs={x: 1}"))


def test_a_key_of_an_entry_is_found() -> None:
    found = find(Settings, "reward.components.3.weight")
    assert found is not None
    assert found.default == 1.0
    assert find(Settings, "reward.components.3.nothing") is None
