"""The keys of a schema by their full dotted path: what they are, how they may be spelt short, which is nearest."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from rapidfuzz import fuzz

from agentverl.settings.section import Section, alternatives

SHORT = {
    "model": "actor_rollout_ref.model",
    "actor": "actor_rollout_ref.actor",
    "rollout": "actor_rollout_ref.rollout",
    "ref": "actor_rollout_ref.ref",
    "agent": "actor_rollout_ref.rollout.agent",
    "multi_turn": "actor_rollout_ref.rollout.multi_turn",
}
"""First words that may stand for the sections where verl has them."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a schema."""

    path: str
    annotation: Any
    default: Any
    description: str

    @property
    def section(self) -> type[Section] | None:
        """The section's class, where the key is one."""
        return self.annotation if isinstance(self.annotation, type) and issubclass(self.annotation, Section) else None

    @property
    def is_open(self) -> bool:
        """Whether anything may stand below: a plugin's own settings."""
        return any(get_origin(kind) is dict for kind in alternatives(self.annotation))

    @property
    def is_text(self) -> bool:
        """Whether a value is a string, or a list of strings that one string stands for."""
        return all(_is_text(kind) for kind in alternatives(self.annotation) if kind is not type(None))


def _is_text(kind: Any) -> bool:
    literals = [value for value in get_args(kind) if isinstance(value, str)]
    return (
        kind is str or bool(literals) or (get_origin(kind) is list and all(_is_text(item) for item in get_args(kind)))
    )


@cache
def keys(root: type[Section]) -> dict[str, Key]:
    """All keys below a root, sections included, by their full path."""
    return {key.path: key for key in _walk(root, "")}


def _walk(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        key = Key(prefix + name, field.annotation, field.get_default(), field.description or "")
        yield key
        if key.section:
            yield from _walk(key.section, f"{key.path}.")


def entry_of(root: type[Section], path: str) -> tuple[type[Section], str] | None:
    """Where a path leads into an entry of a list of sections (`reward.components.0.weight`): its class, the rest."""
    match = re.fullmatch(r"(.+?)\.\d+\.(.+)", path)
    key = keys(root).get(match[1]) if match else None
    if match is None or key is None:
        return None
    lists = [get_args(kind) for kind in alternatives(key.annotation) if get_origin(kind) is list]
    sections = [kind for (kind,) in lists if isinstance(kind, type) and issubclass(kind, Section)]
    return (sections[0], match[2]) if sections else None


def find(root: type[Section], path: str) -> Key | None:
    """The key at a path, or the open one above it."""
    entry = entry_of(root, path)
    if entry is not None:
        return find(*entry)
    known = keys(root)
    if path in known:
        return known[path]
    parent = path.rpartition(".")[0]
    while parent:
        if parent in known:
            return known[parent] if known[parent].is_open else None
        parent = parent.rpartition(".")[0]
    return None


def lengthen(path: str, root: type[Section]) -> str:
    """A path with its first word spelt out where it is a short one of this root."""
    first, dot, rest = path.partition(".")
    if first in SHORT and first not in root.model_fields and SHORT[first] in keys(root):
        return SHORT[first] + dot + rest
    return path


def nearest(root: type[Section], path: str) -> str | None:
    """The known key that a misspelt path most likely means, or nothing that is near enough."""
    scored = [(_likeness(path, known), known) for known, key in keys(root).items() if key.section is None]
    score, best = max(scored)
    return best if score >= 70 else None


def _likeness(path: str, known: str) -> float:
    section, _, name = path.rpartition(".")
    known_section, _, known_name = known.rpartition(".")
    return 0.75 * _name_likeness(name, known_name) + 0.25 * fuzz.ratio(section, known_section)


def _name_likeness(name: str, known: str) -> float:
    likeness = fuzz.ratio(name, known)
    words, known_words = name.split("_"), known.split("_")
    if len(name) >= 4 and all(any(known_word.startswith(word) for known_word in known_words) for word in words):
        return max(likeness, 85)
    return likeness
