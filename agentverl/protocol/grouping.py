"""Rows of a batch that belong together."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def rows_by(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """The rows of each key, in the order in which keys first come; `keys` has one for each row."""
    rows: dict[Key, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        rows[key].append(row)
    return dict(rows)
