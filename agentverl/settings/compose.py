"""From what the user wrote to settings that can run, and back to YAML."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from agentverl.errors import SettingsError
from agentverl.settings.checks import Command, check, check_sft
from agentverl.settings.idle import idle_keys, without_effect
from agentverl.settings.merge import merge
from agentverl.settings.overrides import Arguments, parse
from agentverl.settings.problems import of_validation, refuse
from agentverl.settings.root import Settings
from agentverl.settings.sft import SFTSettings
from agentverl.settings.spellings import accept_foreign
from agentverl.settings.trees import Tree, leaves, take

Comparable = Settings | SFTSettings | Mapping[str, Any]
"""Settings, or the mapping that `read_yaml` gives."""
Root = TypeVar("Root", Settings, SFTSettings)

DEFAULT_RECIPE = "quickstart"

FREE_TO_CHANGE = (
    "trainer.launcher",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.master_port_range",
    "trainer.ray_wait_register_center_timeout",
    "ray_kwargs.ray_init.address",
    "ray_kwargs.ray_init.num_cpus",
    "ray_kwargs.ray_init.include_dashboard",
    "ray_kwargs.ray_init.object_store_memory",
    "ray_kwargs.ray_init.runtime_env",
    "actor_rollout_ref.rollout.agent.num_workers",
    "actor_rollout_ref.rollout.nnodes",
    "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.checkpoint_engine.backend",
    "reward.num_workers",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.resume_mode",
    "trainer.resume_from_path",
)
"""Placement, run length and how to resume: a run may go on with other values of these."""

_log = logging.getLogger("agentverl.settings")


def compose(
    yaml_path: str | Path | None = None, overrides: Sequence[str] = (), *, command: Command = "train"
) -> Settings:
    """The settings from an optional YAML and `key=value` words, checked for a command.

    Without a YAML and without `recipe=NAME` among the words, the recipe is `quickstart`. Keys without effect that
    verl's users type from habit give one warning in the log.

    Raises:
        SettingsError: everything that is wrong, in one message.
    """
    words = [*([] if yaml_path is None else [_as_word(yaml_path)]), *overrides]
    return compose_words(words, command=command)


def compose_words(words: Sequence[str], *, command: Command = "train") -> Settings:
    """The same from the words of a command line, the YAML among them."""
    arguments = parse(words, Settings)
    if arguments.yaml_path is None and arguments.recipe is None:
        arguments.recipe = DEFAULT_RECIPE
    settings, problems, notes = _validated(arguments, Settings)
    _finish(problems + check(settings, command), notes)
    return settings


def compose_sft(words: Sequence[str]) -> SFTSettings:
    """The settings of supervised fine-tuning from the words of a command line.

    Raises:
        SettingsError: everything that is wrong, in one message.
    """
    settings, problems, notes = _validated(parse(words, SFTSettings), SFTSettings)
    _finish(problems + check_sft(settings), notes)
    return settings


def _as_word(path: str | Path) -> str:
    if Path(path).suffix not in (".yaml", ".yml"):
        raise SettingsError(f"{path}: expected the path of a .yaml file")
    return str(path)


def _validated(arguments: Arguments, root: type[Root]) -> tuple[Root, list[str], list[str]]:
    merged = merge(arguments, root)
    problems, notes = accept_foreign(merged.chosen, root)
    try:
        settings = root.model_validate(merged.chosen)
    except ValidationError as error:
        refuse(problems + of_validation(error, root))
        raise
    idle_problems, idle_notes = without_effect(settings, merged.by_user)
    return settings, problems + idle_problems, notes + idle_notes


def _finish(problems: list[str], notes: list[str]) -> None:
    refuse(problems)
    if notes:
        _log.warning("keys of the configuration that change nothing:%s", "".join(f"\n  - {note}" for note in notes))


def to_yaml(settings: Settings | SFTSettings) -> str:
    """The effective configuration: every key that has an effect in this set-up, with its value."""
    return yaml.safe_dump(_effective(settings), sort_keys=False, allow_unicode=True, width=120)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """What `to_yaml` wrote.

    Raises:
        SettingsError: the file is missing or does not hold a configuration.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read the configuration {path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} does not hold a configuration; expected keys such as `data:` and `trainer:`")
    return content


def differences(before: Comparable, after: Comparable) -> list[str]:
    """What differs, one `key: old -> new` each; placement, run length and how to resume are left out."""
    old, new = dict(leaves(_tree(before))), dict(leaves(_tree(after)))
    changed = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    return [f"{key}: {_shown(old.get(key))} -> {_shown(new.get(key))}" for key in changed if key not in FREE_TO_CHANGE]


def _tree(settings: Comparable) -> Mapping[str, Any]:
    return settings if isinstance(settings, Mapping) else _effective(settings)


def _effective(settings: Settings | SFTSettings) -> Tree:
    tree = settings.model_dump(mode="json")
    for path in idle_keys(settings):
        take(tree, path)
    return tree


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
