"""Merging schema defaults, a recipe, the user's YAML with its Hydra `defaults` list, and `key=value` overrides."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import agentverl
from agentverl.errors import SettingsError
from agentverl.settings.keys import find, lengthen, nearest
from agentverl.settings.overrides import Arguments
from agentverl.settings.section import Section
from agentverl.settings.spellings import RENAMED
from agentverl.settings.trees import Tree, holds, merge_into, paths, put, same_shape, take

RECIPES = Path(agentverl.__file__).parent / "configs"


@dataclass(frozen=True, slots=True)
class Merged:
    """What was chosen, without the schema's defaults and with interpolations resolved."""

    chosen: Tree
    by_user: frozenset[str]
    """Paths that the user's YAML or an override set; the rest comes from recipes."""


def merge(arguments: Arguments, root: type[Section]) -> Merged:
    """Merge the layers.

    Raises:
        SettingsError: a file is missing or is no YAML, a recipe does not exist, an interpolation leads nowhere.
    """
    recipe: Tree = {} if arguments.recipe is None else _respelt(_recipe(arguments.recipe), root)
    user: Tree = {}
    own: Tree = {}
    if arguments.yaml_path is not None:
        user = _respelt(_file(arguments.yaml_path), root)
        own = _respelt(_without_defaults(arguments.yaml_path), root)
    _delete(arguments, root, recipe, user, own)
    overrides: Tree = {}
    for path, value in arguments.overrides:
        _respell({path: value}, "", root, overrides)
    chosen: Tree = {}
    for layer in (recipe, user, overrides):
        merge_into(chosen, layer)
    return Merged(_resolved(chosen, root), frozenset([*paths(own), *paths(overrides)]))


def _resolved(chosen: Tree, root: type[Section]) -> Tree:
    """The same with each `${key}` replaced by the value there, which may be a default."""
    if not any("${" in text for text in _texts(chosen)):
        return chosen
    try:
        everything = OmegaConf.merge(root().model_dump(mode="json"), chosen)
        resolved = OmegaConf.to_container(everything, resolve=True)
    except (OmegaConfBaseException, ValueError) as error:
        raise SettingsError(f"cannot put the configuration together: {_one_line(error)}") from None
    assert isinstance(resolved, dict)
    return same_shape(chosen, resolved)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def recipes() -> list[str]:
    """The names that `recipe=` takes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def _recipe(name: str) -> Tree:
    if name not in recipes():
        close = difflib.get_close_matches(name, recipes(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise SettingsError(
            f"recipe={name}: no such recipe{hint} there are {', '.join(recipes())}; a file of your own: its path"
        )
    return _file(RECIPES / f"{name}.yaml")


def _file(path: Path) -> Tree:
    loaded = _loaded(path)
    return _composed(path) if "defaults" in loaded else _plain(loaded)


def _without_defaults(path: Path) -> Tree:
    tree = _plain(_loaded(path))
    tree.pop("defaults", None)
    return tree


def _loaded(path: Path) -> DictConfig:
    if not path.is_file():
        raise SettingsError(f"{path}: no such file; expected a YAML with the run's settings")
    try:
        loaded = OmegaConf.load(path)
    except (yaml.YAMLError, UnicodeDecodeError, OSError, OmegaConfBaseException) as error:
        raise SettingsError(f"{path} is not YAML: {_one_line(error)}") from None
    if not isinstance(loaded, DictConfig):
        raise SettingsError(f"{path} holds a list; expected keys such as `data:` and `trainer:`")
    return loaded


def _composed(path: Path) -> Tree:
    """A YAML with a `defaults` list, whose entries stand beside it or among the recipes."""
    callers = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(path.parent.absolute()), version_base="1.3", job_name="agentverl"):
            return _plain(compose(path.name, [f"hydra.searchpath=[file://{RECIPES}]"]))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise SettingsError(f"{path}: {_one_line(error)}") from None
    finally:
        GlobalHydra.instance().hydra = callers


def _plain(config: Any) -> Tree:
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    return container


def _respelt(tree: Mapping[str, Any], root: type[Section]) -> Tree:
    """The tree with every key at its full path: short first words, other names, dotted keys."""
    result: Tree = {}
    _respell(tree, "", root, result)
    return result


def _respell(tree: Mapping[Any, Any], prefix: str, root: type[Section], result: Tree) -> None:
    for key, value in tree.items():
        path = lengthen(f"{prefix}{key}", root)
        path = RENAMED.get(path, path)
        found = find(root, path)
        if value is None and found is not None and found.section is not None:
            continue  # `data:` with nothing below it
        if isinstance(value, Mapping) and value and not (found and found.is_open):
            _respell(value, f"{path}.", root, result)
        elif value != f"${{{path}}}":
            put(result, path, _respell_references(value, root))


def _respell_references(value: Any, root: type[Section]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\$\{([\w.]+)\}", lambda match: f"${{{lengthen(match[1], root)}}}", value)
    if isinstance(value, list):
        return [_respell_references(item, root) for item in value]
    if isinstance(value, dict):
        return {key: _respell_references(item, root) for key, item in value.items()}
    return value


def _delete(arguments: Arguments, root: type[Section], *layers: Tree) -> None:
    for path in arguments.deletions:
        held = [layer for layer in layers if holds(layer, path)]
        if not held:
            near = nearest(root, path) if find(root, path) is None else None
            hint = f"; nearest: {near}" if near else "; it has its default already"
            raise SettingsError(f"~{path}: neither the recipe nor the YAML sets it{hint}")
        for layer in held:
            take(layer, path)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
