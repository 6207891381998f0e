"""The keys of one configuration that have no effect in it."""

from collections.abc import Collection, Sequence
from typing import Any

from agentverl.settings.effects import RULES
from agentverl.settings.keys import keys
from agentverl.settings.root import Settings
from agentverl.settings.rule import Rule
from agentverl.settings.sft import SFTSettings
from agentverl.settings.sft_effects import SFT_RULES


def idle_keys(settings: Settings | SFTSettings) -> dict[str, Rule[Any]]:
    """The keys that have no effect in this set-up, each with the rule that says so."""
    rules: Sequence[Rule[Any]]
    if isinstance(settings, Settings):
        rules = [rule for rule in RULES if rule.idle(settings)]
    else:
        rules = [rule for rule in SFT_RULES if rule.idle(settings)]
    values = [key.path for key in keys(type(settings)).values() if key.section is None]
    return {path: rule for rule in rules for path in values if rule.covers(path)}


def without_effect(settings: Settings | SFTSettings, by_user: Collection[str]) -> tuple[list[str], list[str]]:
    """(problems, notes): keys that the user set to no effect.

    A null asks for nothing and is neither; so is the default of a key that is typed from habit.
    """
    problems: list[str] = []
    notes: list[str] = []
    for path, rule in idle_keys(settings).items():
        value = value_at(settings, path)
        if path not in by_user or value is None or (rule.habit and value == keys(type(settings))[path].default):
            continue
        (notes if rule.habit else problems).append(f"{path} has no effect: {rule.reason}")
    return problems, notes


def value_at(settings: Settings | SFTSettings, path: str) -> Any:
    """The value at a full dotted path."""
    value: Any = settings
    for name in path.split("."):
        value = value[name]
    return value
