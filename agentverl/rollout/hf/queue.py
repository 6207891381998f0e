"""Requests that wait for a row: first come first served by priority, or in deterministic rounds."""

import bisect
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from operator import attrgetter

from agentverl.rollout.hf.requests import Request


class WaitingQueue:
    """A lower priority value is served earlier; within one priority the earlier arrival is."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, request: Request) -> None:
        bisect.insort(self._waiting, request, key=attrgetter("turn"))

    def push_back(self, request: Request) -> None:
        """Return a request that already had its turn."""
        self.push(request)

    def ready(self, leases: AbstractSet[str], running: int) -> list[Request]:
        """The requests that may run now, the next one first."""
        return self._waiting

    def pop(self, place: int) -> Request:
        """Take a ready request."""
        return self._waiting.pop(place)

    def take_if(self, condition: Callable[[Request], bool]) -> list[Request]:
        """Take the requests that fulfil a condition."""
        taken = [request for request in self._waiting if condition(request)]
        self._waiting = [request for request in self._waiting if not condition(request)]
        return taken


class RoundQueue(WaitingQueue):
    """A round starts when nothing runs and every open lease has a request waiting; later requests wait for the next.

    So what runs together depends on the requests alone and not on when they arrive.
    """

    def __init__(self) -> None:
        super().__init__()
        self._round: list[Request] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._round)

    def push_back(self, request: Request) -> None:
        bisect.insort(self._round, request, key=attrgetter("rank"))

    def ready(self, leases: AbstractSet[str], running: int) -> list[Request]:
        if not self._round and not running and self._waiting:
            waiting = {request.request_id for request in self._waiting}
            if leases <= waiting:
                self._round = sorted(self._waiting, key=attrgetter("rank"))
                self._waiting = []
        return self._round

    def pop(self, place: int) -> Request:
        return self._round.pop(place)

    def take_if(self, condition: Callable[[Request], bool]) -> list[Request]:
        taken = super().take_if(condition) + [request for request in self._round if condition(request)]
        self._round = [request for request in self._round if not condition(request)]
        return taken
