"""What `agentverl list` prints: installed plugins by kind, recipes, and the keys of the configuration."""

import inspect
import json
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentverl import plugins
from agentverl.errors import BadInputError, PluginError
from agentverl.settings.keys import keys
from agentverl.settings.merge import RECIPES, recipes
from agentverl.settings.root import Settings
from agentverl.settings.section import Section
from agentverl.settings.sft import SFTSettings

_GROUP = "agentverl."
_SCHEMAS: dict[str, type[Section]] = {"settings": Settings, "sft_settings": SFTSettings}
_WIDTH_OF_A_FILE = 160


def kinds() -> list[str]:
    """The kinds of which a plugin is installed."""
    return sorted({group.removeprefix(_GROUP) for group in entry_points().groups if group.startswith(_GROUP)})


def described(kind: str) -> Iterator[tuple[str, str, str]]:
    """(name, target, first line of its docstring, or why it does not import) of each plugin of a kind."""
    for name, target in plugins.installed(kind):
        try:
            text = inspect.getdoc(plugins.find(kind, name)) or ""
        except PluginError as error:
            text = f"ERROR: {error}"
        yield name, target, text.partition("\n")[0]


def print_catalogue(kind: str | None) -> None:
    """Print one kind, or all plugins and recipes.

    Raises:
        BadInputError: there is no such kind.
    """
    known = [*kinds(), "recipes", *_SCHEMAS]
    if kind is not None and kind not in known:
        raise BadInputError(f"no kind {kind!r}; expected one of {', '.join(known)}")
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_FILE
    for one in [kind] if kind else [*kinds(), "recipes"]:
        console.print(_table(one))
    if kind is None:
        console.print("agentverl list settings: every key of the configuration")


def _table(kind: str) -> Table:
    if kind in _SCHEMAS:
        return _filled(kind, ("key", "default", "meaning"), _keys(_SCHEMAS[kind]))
    if kind == "recipes":
        return _filled(kind, ("name", "what"), ((name, _headline(name)) for name in recipes()))
    return _filled(kind, ("name", "target", "what"), described(kind))


def _filled(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _keys(root: type[Section]) -> Iterator[tuple[str, str, str]]:
    for key in keys(root).values():
        if key.section is None:
            default = "null" if key.default is None else json.dumps(key.default)
            yield key.path, default, key.description.replace("\n", " ")


def _headline(recipe: str) -> str:
    text = (RECIPES / f"{recipe}.yaml").read_text(encoding="utf-8")
    return text.partition("\n")[0].lstrip("# ").rstrip(":")
