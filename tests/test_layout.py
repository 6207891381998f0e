"""The layout that people rely on: five links at the root, empty `__init__` files, modules that can be read."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ("agent_loops", "tools", "environments", "rewards", "configs")
SOURCES = sorted((ROOT / "agentverl").rglob("*.py"))
VAGUE = {"util", "utils", "helper", "helpers", "common", "misc"}
LAZY_TABLES = {ROOT / "agentverl" / "__init__.py", ROOT / "agentverl" / "algorithms" / "__init__.py"}


@pytest.mark.parametrize("name", LINKS)
def test_the_root_has_a_relative_link_into_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"agentverl/{name}"
    assert link.resolve() == ROOT / "agentverl" / name


def test_no_module_is_longer_than_400_lines() -> None:
    long = {
        str(path.relative_to(ROOT)): count for path in SOURCES if (count := len(path.read_text().splitlines())) > 400
    }
    assert not long


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert not [str(path.relative_to(ROOT)) for path in SOURCES if path.stem in VAGUE or path.parent.name in VAGUE]


def test_init_files_are_empty_but_for_two_tables_of_lazy_names() -> None:
    filled = [path for path in SOURCES if path.name == "__init__.py" and path.read_text().strip()]
    assert set(filled) <= LAZY_TABLES


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path for path in SOURCES if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


@pytest.mark.parametrize("folder", ["agentverl", "tests", "examples", "benchmarks"])
def test_nothing_is_imported_through_the_links(folder: str) -> None:
    bare = re.compile(rf"^\s*(?:from|import)\s+(?:{'|'.join(LINKS)})\b(?!\w)", re.MULTILINE)
    guilty = [str(path) for path in (ROOT / folder).rglob("*.py") if bare.search(path.read_text())]
    assert not guilty


def test_tests_stand_in_folders_named_after_those_of_the_package() -> None:
    rooms = {
        path.parent.relative_to(ROOT / "agentverl").parts[0] for path in SOURCES if path.parent != ROOT / "agentverl"
    }
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.rglob("test_*.py"))}
    # Contracts only, without behaviour; and YAML, which the tests of settings read.
    assert rooms - tested <= {"sandboxes", "configs"}
