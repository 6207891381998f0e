"""A rule about keys that have no effect in some set-ups."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from agentverl.settings.root import Settings
from agentverl.settings.sft import SFTSettings

Root = TypeVar("Root", Settings, SFTSettings)


@dataclass(frozen=True, slots=True)
class Rule(Generic[Root]):
    """Keys without effect wherever `idle` says so."""

    idle: Callable[[Root], bool]
    reason: str
    patterns: tuple[str, ...]
    """Paths of keys, as those of files in a shell."""
    habit: bool = False
    """Users of verl type these keys whether they count or not: a warning, no error."""

    def covers(self, path: str) -> bool:
        """Whether a key is one of the rule's."""
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)
