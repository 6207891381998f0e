"""What is wrong with a run, collected, so that a user mends a configuration once, not key by key."""

from collections.abc import Callable
from typing import TypeVar

from agentverl.errors import BadInputError, SettingsError

_Made = TypeVar("_Made")


class Problems:
    """Collects what keeps a run from starting."""

    def __init__(self) -> None:
        self._errors: list[BadInputError] = []

    def attempt(self, make: Callable[[], _Made]) -> _Made | None:
        """What `make` returns; None, and a problem more, where it raises a BadInputError."""
        try:
            return make()
        except BadInputError as error:
            self._errors.append(error)
            return None

    def refuse(self) -> None:
        """Raise what was collected: one error as it is, several as one that lists them, each once."""
        by_message = {str(error): error for error in self._errors}
        if len(by_message) == 1:
            raise next(iter(by_message.values()))
        if by_message:
            lines = "\n".join(f"  - {message}" for message in by_message)
            raise SettingsError(f"{len(by_message)} things keep the run from starting:\n{lines}")
