"""What a launcher runs: a controller from beginning to end."""

from typing import Protocol, TypeVar

Result = TypeVar("Result", covariant=True)


class Program(Protocol[Result]):
    """What drives workers. It has to pickle."""

    def run(self) -> Result:
        """All of it."""

    def interrupt(self) -> None:
        """Ask it, from another thread, to save and end."""
