"""What was started on workers and not waited for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentverl.single_controller.splitting import Deferred, Divisible


class Started(Protocol):
    """A method that was started on one rank."""

    def get(self) -> Any:
        """Wait for its result; raises what it raised."""


class Pending(Divisible):
    """The result of a call that was not waited for.

    Args:
        started: on each rank that returns something.
        gather: waits for all of them; where one fails, at once for none.
        collect: their results become that of the call.
    """

    def __init__(
        self,
        started: Sequence[Started],
        gather: Callable[[Sequence[Started]], list[Any]],
        collect: Callable[[list[Any]], Any],
    ) -> None:
        self._started = started
        self._gather = gather
        self._collect = collect

    def get(self) -> Any:
        """Wait for the result; raises what the call raised."""
        return self._collect(self._gather(self._started))

    def chunk(self, chunks: int) -> Sequence[Deferred]:
        """The result, which must be a DataProto, in shares that workers fetch by themselves."""
        return [_Share(self._started, self._collect, chunks, number) for number in range(chunks)]

    def deferred(self) -> Deferred:
        """The whole result, which workers fetch by themselves."""
        return _Share(self._started, self._collect)


@dataclass(frozen=True, slots=True)
class _Share(Deferred):
    started: Sequence[Started]
    collect: Callable[[list[Any]], Any]
    chunks: int | None = None
    number: int = 0

    def resolve(self) -> Any:
        if self.chunks == len(self.started):
            # The shares of one call are those of the next: no rank fetches what others work on.
            return self.started[self.number].get()
        whole = self.collect([one.get() for one in self.started])
        return whole if self.chunks is None else whole.chunk(self.chunks)[self.number]
