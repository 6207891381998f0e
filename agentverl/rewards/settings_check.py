"""Settings of a scorer that have to fit together, which no annotation can say."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "agentverl_settings_check"


def settings_checked_by(check: Callable[..., None]) -> Callable[[_Function], _Function]:
    """Mark a scorer whose settings `check` refuses with a ValueError; it is called before anything is scored.

    Its parameters are some of the scorer's; what is not configured comes with the scorer's own default.
    """

    def mark(function: _Function) -> _Function:
        setattr(function, _MARK, check)
        return function

    return mark


def check_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Let a scorer's check see the settings that it is configured with.

    Raises:
        ValueError: they do not fit together.
    """
    check: Callable[..., None] | None = getattr(function, _MARK, None)
    if check is not None:
        own = inspect.signature(function).parameters
        check(**{key: settings.get(key, own[key].default) for key in inspect.signature(check).parameters})
