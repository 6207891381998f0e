"""Nested mappings seen as dotted paths."""

from collections.abc import Iterator, Mapping
from typing import Any

Tree = dict[str, Any]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each path that ends in something else than a filled mapping, with its value."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Each path of a tree, inner ones too, outer ones first."""
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{key}.")


def put(tree: Tree, path: str, value: Any) -> None:
    """Set a value; a mapping is merged into one that stands there."""
    *sections, name = path.split(".")
    for section in sections:
        below = tree.get(section)
        if not isinstance(below, dict):
            below = tree[section] = {}
        tree = below
    merge_into(tree, {name: value})


def merge_into(tree: Tree, other: Mapping[str, Any]) -> None:
    """Add the entries of another tree; mappings are merged, anything else is replaced."""
    for key, value in other.items():
        below = tree.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merge_into(below, value)
        else:
            tree[key] = value


def take(tree: Tree, path: str) -> Any:
    """Remove a path and give its value back; sections left empty go too.

    Raises:
        KeyError: nothing stands there.
    """
    first, _, rest = path.partition(".")
    if not rest:
        return tree.pop(first)
    below = tree[first]
    if not isinstance(below, dict):
        raise KeyError(path)
    value = take(below, rest)
    if not below:
        del tree[first]
    return value


def holds(tree: Mapping[str, Any], path: str) -> bool:
    """Whether something stands at a path."""
    first, _, rest = path.partition(".")
    if first not in tree:
        return False
    return not rest or (isinstance(tree[first], Mapping) and holds(tree[first], rest))


def same_shape(shape: Mapping[str, Any], values: Mapping[str, Any]) -> Tree:
    """The entries of `values` that `shape` has too."""
    result: Tree = {}
    for key, inner in shape.items():
        value = values[key]
        nested = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = same_shape(inner, value) if nested else value
    return result
