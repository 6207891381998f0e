"""The words after the command: a YAML file, `recipe=NAME`, `key=value` and `~key`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from agentverl.errors import SettingsError
from agentverl.settings.keys import find, lengthen
from agentverl.settings.section import Section
from agentverl.settings.spellings import RENAMED

_KEY = re.compile(r"[A-Za-z_][\w:-]*(\.[\w:-]+)*")
_STRUCTURED = "[{'\""


@dataclass(slots=True)
class Arguments:
    """What the words say; overrides and deletions name keys by their full path."""

    yaml_path: Path | None = None
    recipe: str | None = None
    overrides: list[tuple[str, Any]] = field(default_factory=list)
    deletions: list[str] = field(default_factory=list)


def parse(words: Sequence[str], root: type[Section]) -> Arguments:
    """Sort the words and read each value; the keys are left for the schema to judge.

    Raises:
        SettingsError: a word is none of these, there are two YAML files, or a value cannot be read.
    """
    arguments = Arguments()
    for word in (word.strip() for word in words):
        if word.startswith("~"):
            arguments.deletions.append(_full_path(_checked_key(word[1:], word), root))
        elif _is_yaml(word):
            if arguments.yaml_path is not None:
                raise SettingsError(f"got two YAML files, {arguments.yaml_path} and {word}; expected at most one")
            arguments.yaml_path = Path(word) / "config.yaml" if Path(word).is_dir() else Path(word)
        elif "=" not in word:
            raise SettingsError(
                f"got {word!r}; expected a .yaml file, a run's folder, key=value, or ~key to go back to a default"
            )
        elif word.startswith("recipe="):
            arguments.recipe = word.removeprefix("recipe=")
        else:
            key, _, text = word.lstrip("+").partition("=")
            path = _full_path(_checked_key(key.strip(), word), root)
            arguments.overrides.append((path, _value(key.strip(), path, text.strip(), root)))
    return arguments


def _is_yaml(word: str) -> bool:
    """A YAML file, or a run's folder, which has one."""
    if _is_file(Path(word) / "config.yaml"):
        return True
    return word.endswith((".yaml", ".yml")) and ("=" not in word or _is_file(Path(word)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a value is longer than a file's name may be
        return False


def _checked_key(key: str, word: str) -> str:
    if not _KEY.fullmatch(key):
        raise SettingsError(f"{word!r} has no key before the '='; expected key=value such as trainer.seed=1")
    return key


def _full_path(key: str, root: type[Section]) -> str:
    path = lengthen(key, root)
    if ".on_end." in path:  # the schema's names have no ':', which those of terminations have
        path = path.replace(":", "_")
    return path


def _value(key: str, path: str, text: str, root: type[Section]) -> Any:
    """What a value's text means: where the schema wants text, itself; elsewhere, what Hydra's grammar reads."""
    found = find(root, RENAMED.get(path, path))
    is_text = found is not None and found.is_text
    if not is_text or text == "null" or text[:1] in _STRUCTURED:
        override = _read(path, text)
        if override is not None:
            return override.value()
    if text[:1] in _STRUCTURED and not is_text:
        raise SettingsError(
            f"{key}: cannot read {text!r}; inside lists and mappings, text with = ( ) , # or spaces stands in quotes, "
            f"and in a shell the whole word too: \"{key}=['a=b','c d']\""
        )
    return text


def _read(path: str, text: str) -> Override | None:
    """What Hydra's grammar makes of it, where that is one value and not several to sweep over."""
    try:
        override = _parser().parse_override(f"{path}={text}")
    except HydraException:
        return None
    return None if override.is_sweep_override() else override


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()
