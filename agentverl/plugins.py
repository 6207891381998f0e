"""How a plugin is found, by entry point, `package.module:Attribute` or `file.py:Attribute`, and its keys checked."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentverl.errors import PluginError, SettingsError

_OF_FILE = "agentverl_plugin_"
_NOT_THE_USERS = (f"{Path(__file__).parent}/", f"{sysconfig.get_path('stdlib')}/", "<")


@cache
def _installed(kind: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"agentverl.{kind}")}


def installed(kind: str) -> Iterator[tuple[str, str]]:
    """Names and targets of the installed plugins of a kind (`tools`, `agent_loops`, ...), sorted by name."""
    return ((name, entry.value) for name, entry in sorted(_installed(kind).items()))


def find(kind: str, name: str) -> Any:
    """The object behind a plugin's name.

    Raises:
        PluginError: nothing has that name, or importing it failed; says which names exist and which is nearest.
    """
    entry = _installed(kind).get(name)
    if entry is not None:
        return _guarded(kind, name, entry.load)
    if ":" in name:
        module, _, attribute = name.rpartition(":")
        return _guarded(kind, name, lambda: _attribute(_module(module), attribute))
    if "." in name and not name.endswith(".py"):
        module, _, attribute = name.rpartition(".")
        return _guarded(kind, name, lambda: _attribute(_module(module), attribute))
    if name.endswith(".py"):
        raise PluginError(f"{kind} plugin {name!r} is a file; say which name in it is meant: {name}:Name")
    known = [known for known, _ in installed(kind)]
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    raise PluginError(
        f"no {kind} plugin named {name!r}{hint} Installed: {', '.join(known) or 'none'}. "
        "Also accepted: package.module:Attribute or file.py:Attribute"
    )


def place_of(thing: Any) -> str:
    """Where a class or function stands, as its user would write it: `package.module:Name` or `/path/file.py:Name`."""
    return f"{written_name(getattr(thing, '__module__', '?'))}:{getattr(thing, '__qualname__', thing)}"


def written_name(module_name: str) -> str:
    """A module as its user would write it: one that was loaded from a file by that file."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return str(file) if module_name.startswith(_OF_FILE) and file else module_name


def line_of(error: BaseException) -> str:
    """` (file.py:8)`, the innermost line of the user's own code that an error came through; else empty."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        installed_there = "site-packages" in frame.filename or "dist-packages" in frame.filename
        if not installed_there and not frame.filename.startswith(_NOT_THE_USERS):
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def load_module(kind: str, name: str) -> Any:
    """The module behind `package.module` or `file.py`, for plugins that are found inside it.

    Raises:
        PluginError: it does not exist or does not import.
    """
    return _guarded(kind, name, lambda: _module(name))


_Model = TypeVar("_Model", bound=BaseModel)


def checked_settings(
    model: type[_Model], given: Mapping[Any, Any], where: str, also_known: Iterable[str] = ()
) -> _Model:
    """A plugin's own keys, checked by its own model; `also_known` are keys that are handled elsewhere.

    Raises:
        SettingsError: begins with `where` and names each key that is unknown (with the nearest), missing or wrong.
    """
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        known = [*also_known, *model.model_fields]
        raise SettingsError(f"{where}: {'; '.join(_problem(one, known) for one in error.errors())}") from None


def _problem(detail: Mapping[str, Any], known: list[str]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known) or 'none'}"
        return f"key {key!r} is unknown ({hint})"
    if detail["type"] == "missing":
        return f"key {key!r} is missing"
    said = str(detail["msg"]).removeprefix("Value error, ")
    return f"{key} = {detail['input']!r}: {said}" if key else said


def _guarded(kind: str, name: str, load: Any) -> Any:
    try:
        return load()
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}{line_of(error)}"
        raise PluginError(f"{kind} plugin {name!r} does not import: {reason}") from error


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise PluginError(f"plugin file {name} does not exist (looked for {path})")
    # A name of its own per path, so that two files named alike do not shadow each other and pickling finds the module.
    module_name = f"{_OF_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _attribute(module: Any, attribute: str) -> Any:
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        nearest = difflib.get_close_matches(attribute, public, n=3)
        raise PluginError(
            f"{written_name(module.__name__)} has no attribute {attribute!r}"
            + (f"; it has {', '.join(nearest)}" if nearest else "")
        )
    return getattr(module, attribute)
