"""How many calls of one scorer run at a time."""

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "agentverl_most_at_once"


def at_once(most: int) -> Callable[[_Function], _Function]:
    """Mark a scorer of which only so many calls may run at a time; waiting for a place counts against no deadline."""

    def mark(function: _Function) -> _Function:
        setattr(function, _MARK, most)
        return function

    return mark


def most_at_once(function: Callable[..., Any]) -> int | None:
    """How many calls of a scorer may run at a time, None where it does not say."""
    most: int | None = getattr(function, _MARK, None)
    return most
