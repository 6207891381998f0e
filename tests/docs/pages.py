"""Read the pages: their named files and their commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"#\s*(\S+\.(?:py|yaml))\b")


@dataclass(slots=True)
class Page:
    """The files that a page shows (code that begins with a comment holding a name), and its `agentverl` commands."""

    path: Path
    files: dict[str, str] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Put the files where the commands expect them."""
        for name, text in self.files.items():
            (folder / name).write_text(text)


def read(path: Path) -> Page:
    """The page with its files and commands."""
    page = Page(path)
    for language, text in _FENCE.findall(path.read_text()):
        first = text.splitlines()[0] if text else ""
        if language in ("python", "yaml") and (name := _NAME.match(first)):
            page.files[name.group(1)] = text
        if language == "bash":
            page.commands += list(_commands(text))
    return page


def _commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if words and words[0] == "agentverl":
            yield words[1:]


def all_pages() -> list[Page]:
    """README and every page of the documentation."""
    return [read(path) for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
