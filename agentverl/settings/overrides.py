"""The words after the command: a YAML file, `recipe=NAME`, `key=value` and `~key`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from agentverl.errors import SettingsError
from agentverl.settings.keys import find, lengthen
from agentverl.settings.section import Section
from agentverl.settings.spellings import RENAMED

_KEY = re.compile(r"[A-Za-z_][\w:-]*(\.[\w:-]+)*")
_STRUCTURED = "[{'\""


@dataclass(slots=True)
class Arguments:
    """What the words say; `overrides` are in Hydra's grammar, `deletions` are full paths."""

    yaml_path: Path | None = None
    recipe: str | None = None
    overrides: list[str] = field(default_factory=list)
    deletions: list[str] = field(default_factory=list)


def parse(words: Sequence[str], root: type[Section]) -> Arguments:
    """Sort the words and rewrite each override so that Hydra takes it and the schema judges it.

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
            key, _, value = word.lstrip("+").partition("=")
            arguments.overrides.append(_override(_checked_key(key.strip(), word), value.strip(), root))
    return arguments


def _is_yaml(word: str) -> bool:
    """A YAML file, or a run's folder, which has one."""
    if (Path(word) / "config.yaml").is_file():
        return True
    return word.endswith((".yaml", ".yml")) and ("=" not in word or Path(word).is_file())


def _checked_key(key: str, word: str) -> str:
    if not _KEY.fullmatch(key):
        raise SettingsError(f"{word!r} has no key before the '='; expected key=value such as trainer.seed=1")
    return key


def _full_path(key: str, root: type[Section]) -> str:
    path = lengthen(key, root)
    if ".on_end." in path:  # Hydra's grammar has no ':' in keys, which the names of terminations have
        path = path.replace(":", "_")
    return path


def _override(key: str, value: str, root: type[Section]) -> str:
    path = _full_path(key, root)
    return f"++{path}={_hydra_value(key, path, value, root)}"


def _hydra_value(key: str, path: str, value: str, root: type[Section]) -> str:
    found = find(root, RENAMED.get(path, path))
    if found is not None and found.is_text:
        return value if value == "null" or (value[:1] in _STRUCTURED and _reads(path, value)) else quoted(value)
    if _reads(path, value):
        return value
    if value[:1] in _STRUCTURED:
        raise SettingsError(
            f"{key}: cannot read {value!r}; inside lists and mappings, text with = ( ) , # or spaces stands in quotes, "
            f"and in a shell the whole word too: \"{key}=['a=b','c d']\""
        )
    return quoted(value)


def _reads(path: str, value: str) -> bool:
    """Whether Hydra's grammar reads one value, and not several to sweep over."""
    try:
        return not _parser().parse_override(f"++{path}={value}").is_sweep_override()
    except HydraException:
        return False


@cache
def _parser() -> Any:
    return OverridesParser.create()


def quoted(value: str) -> str:
    """A text as Hydra's grammar quotes it: what stands before a quote or the end loses half its backslashes."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"
