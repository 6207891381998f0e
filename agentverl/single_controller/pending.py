"""What was started on workers and not waited for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentverl.single_controller.splitting import Deferred, Divisible, concat_batches


class Started(Protocol):
    """A method that was started on one rank."""

    def get(self) -> Any:
        """Wait for its result; raises what it raised."""


class Pending(Divisible):
    """The result of a call that was not waited for.

    Args:
        started: on each rank that runs.
        gather: waits for all of them; where one fails, at once for none.
        collect: the results of those that collect become that of the call.
        collecting: which of `started` they are, in the order of their shares; None: all of them as they stand.
    """

    def __init__(
        self,
        started: Sequence[Started],
        gather: Callable[[Sequence[Started]], list[Any]],
        collect: Callable[[list[Any]], Any],
        collecting: Sequence[int] | None = None,
    ) -> None:
        self._started = started
        self._gather = gather
        self._collect = collect
        self._collecting = range(len(started)) if collecting is None else collecting

    def get(self) -> Any:
        """Wait for the result; raises what the call raised."""
        results = self._gather(self._started)
        return self._collect([results[number] for number in self._collecting])

    def chunk(self, chunks: int) -> Sequence[Deferred]:
        """The result, which must be a DataProto, in shares that workers fetch by themselves."""
        return [_Share(self._shares(), self._collect, chunks, number) for number in range(chunks)]

    def deferred(self) -> Deferred:
        """The whole result, which workers fetch by themselves."""
        return _Share(self._shares(), self._collect)

    def _shares(self) -> list[Started]:
        return [self._started[number] for number in self._collecting]


@dataclass(frozen=True, slots=True)
class _Share(Deferred):
    shares: Sequence[Started]
    collect: Callable[[list[Any]], Any]
    chunks: int | None = None
    number: int = 0

    def resolve(self) -> Any:
        if self.chunks == len(self.shares) and self.collect is concat_batches:
            # The shares of one call are those of the next: no rank fetches what others work on.
            return self.shares[self.number].get()
        whole = self.collect([one.get() for one in self.shares])
        return whole if self.chunks is None else whole.chunk(self.chunks)[self.number]
