"""Everything that is wrong with a configuration, said in one error: key, what came, what is expected, what is near."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentverl.errors import SettingsError
from agentverl.settings.keys import entry_of, find, keys, nearest
from agentverl.settings.section import Section
from agentverl.settings.trees import leaves

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list such as [a,b]",
    "tuple_type": "a list such as [a,b]",
    "dict_type": "a mapping such as {key: value}",
    "model_type": "a section with keys",
    "missing": "a value",
}


def refuse(problems: Sequence[str]) -> None:
    """Raise what was found, if anything.

    Raises:
        SettingsError: one line for one problem, a list for several.
    """
    if len(problems) == 1:
        raise SettingsError(problems[0])
    if problems:
        raise SettingsError(
            f"{len(problems)} problems in the configuration:\n" + "\n".join(f"  - {line}" for line in problems)
        )


def unknown_key(path: str, root: type[Section]) -> str:
    """The problem of a key that the schema does not have."""
    entry = entry_of(root, path)
    if entry is not None:
        return f"{path.removesuffix(entry[1])}{unknown_key(entry[1], entry[0])}"
    near = nearest(root, path)
    section = path.rpartition(".")[0]
    there = [key.path.rpartition(".")[2] for key in keys(root).values() if key.path.rpartition(".")[0] == section]
    if near:
        return f"{path}: no such key; nearest: {near}"
    return f"{path}: no such key" + (f"; there are {', '.join(there)}" if there else "")


def of_validation(error: ValidationError, root: type[Section]) -> list[str]:
    """One line a key, in the order of the schema; the alternatives of a union stand in one line."""
    found: dict[str, list[ErrorDetails]] = {}
    unknown: list[str] = []
    for detail in error.errors(include_url=False):
        path = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            tree = detail["input"] if isinstance(detail["input"], Mapping) else {}
            unknown += [unknown_key(leaf, root) for leaf, _ in leaves(tree, f"{path}.")] or [unknown_key(path, root)]
        else:
            found.setdefault(_known(path, root), []).append(detail)
    return unknown + [_line(path, details) for path, details in found.items()]


def _known(path: str, root: type[Section]) -> str:
    while find(root, path) is None and "." in path:
        path = path.rpartition(".")[0]
    return path


def _line(path: str, details: list[ErrorDetails]) -> str:
    expected = list(dict.fromkeys(_expected(detail) for detail in details))
    hint = ""
    if any(detail["type"] == "string_type" and isinstance(detail["input"], int | float) for detail in details):
        hint = "; quotes make it text"
    return f"{path}: got {_shown(details[0]['input'])}; expected {' or '.join(expected)}{hint}"


def _expected(detail: ErrorDetails) -> str:
    if detail["type"] == "literal_error":
        return str(detail["ctx"]["expected"]).replace("'", "")
    if detail["type"] == "missing" and isinstance(detail["loc"][-1], int):
        return "a longer list"
    if detail["type"] in _EXPECTED:
        return _EXPECTED[detail["type"]]
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("a valid ")
    return text[:1].lower() + text[1:]


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
