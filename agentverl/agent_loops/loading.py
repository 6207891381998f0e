"""Which agent loops a run has: a YAML list of `{name, _target_, ...}`, entry points, and import paths."""

import difflib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentverl import plugins
from agentverl.agent_loops.base import AgentLoopBase
from agentverl.agent_loops.context import AgentContext
from agentverl.errors import PluginError, SettingsError

_EXAMPLE = "expected a list such as `[{name: my_agent, _target_: my_package.my_module.MyAgent}]`"


@dataclass(frozen=True, slots=True)
class AgentLoopSpec:
    """One agent loop by the name that rows and the configuration use, with its own settings."""

    name: str
    loop_class: type[AgentLoopBase]
    settings: dict[str, Any] = field(default_factory=dict)

    def make(self, context: AgentContext) -> AgentLoopBase:
        """The loop of one trajectory."""
        return self.loop_class(context, **self.settings)


_registered: dict[str, type[AgentLoopBase]] = {}


def register_loop(name: str, loop_class: type[AgentLoopBase]) -> None:
    """Make a loop known by a name as a side effect of importing its module, as verl's `register` does."""
    _registered[name] = loop_class


class AgentLoops:
    """Finds agent loops by name: those of the YAML first, then whatever `plugins` finds.

    Raises:
        SettingsError: the YAML is missing, is not such a list, or an entry has settings that its loop does not know.
        PluginError: an entry's `_target_` is not found or is no agent loop.
    """

    def __init__(self, config_path: str | Path | None = None) -> None:
        entries = [] if config_path is None else _entries(Path(config_path))
        self._specs: dict[str, AgentLoopSpec] = {}
        for index, entry in enumerate(entries):
            spec = _spec(entry, f"{config_path}: entry {index}")
            if spec.name in self._specs:
                raise SettingsError(f"{config_path}: two agent loops are called {spec.name!r}; rename one")
            self._specs[spec.name] = spec

    def find(self, name: str) -> AgentLoopSpec:
        """The loop of that name, which may also be `package.module:Attribute` or `file.py:Attribute`.

        Raises:
            PluginError: there is none; says which there are and which is nearest.
        """
        if name in _registered and name not in self._specs:
            self._specs[name] = AgentLoopSpec(name, _checked_class(_registered[name], f"agent loop {name!r}"))
        if name not in self._specs:
            try:
                target = plugins.find("agent_loops", name)
            except PluginError as error:
                nearest = difflib.get_close_matches(name, self._specs, n=1)
                of_file = f". In the configured file: {', '.join(self._specs)}" if self._specs else ""
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise PluginError(f"{error}{of_file}{hint}") from None
            self._specs[name] = AgentLoopSpec(name, _checked_class(target, f"agent loop {name!r}"))
        return self._specs[name]


def _entries(path: Path) -> list[Any]:
    if not path.is_file():
        raise SettingsError(f"agent.agent_loop_config_path: {path} is not a file; {_EXAMPLE}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, list) or not content:
        raise SettingsError(f"{path} holds {type(content).__name__}; {_EXAMPLE}")
    return content


def _spec(entry: Any, where: str) -> AgentLoopSpec:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or "_target_" not in entry:
        raise SettingsError(f"{where} lacks `name` or `_target_`; {_EXAMPLE}")
    settings = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
    loop_class = _checked_class(plugins.find("agent_loops", str(entry["_target_"])), where)
    loop_class.check_settings(settings)
    return AgentLoopSpec(entry["name"], loop_class, settings)


def _checked_class(target: Any, where: str) -> type[AgentLoopBase]:
    if not inspect.isclass(target) or not issubclass(target, AgentLoopBase):
        raise PluginError(f"{where} is {target!r}; expected a subclass of agentverl.AgentLoopBase")
    if inspect.isabstract(target):
        raise PluginError(f"{where}: {target.__name__} does not define `async def run`")
    return target
