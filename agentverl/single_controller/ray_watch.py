"""Waiting for calls on many ranks: the first failure ends it, and nothing is waited for that does not live."""

import time
from collections.abc import Sequence
from typing import Any

import ray

from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.ray_call import Broken, RayCall
from agentverl.single_controller.worker_errors import WorkerDiedError, WorkerStalledError

_LOOK_SECONDS = 5.0
_OTHERS_SECONDS = 1.0
_STACK_SECONDS = 5.0


class Watch:
    """Waits for calls; a rank that dies, raises, does not answer, or lags far behind ends the wait."""

    def __init__(self, actors: Sequence[Any], calls: Sequence[RayCall], options: HostOptions) -> None:
        self.waiting = {call.reference: number for number, call in enumerate(calls)}
        self.results: list[Any] = [None] * len(calls)
        self._actors = actors
        self._options = options
        self._calls = calls
        self._pings: dict[int, tuple[Any, float]] = {}
        self._first_end: float | None = None
        self.look_seconds = min(_LOOK_SECONDS, options.silent_seconds / 2, options.lag_seconds / 2)

    def wait(self) -> None:
        """Wait until a call ends, or for a moment.

        Raises:
            Exception: what the first of the calls that failed raised; WorkerError where it died or stalled.
        """
        ended = self._ended(self.look_seconds)
        if not ended:
            return self.look()
        self._first_end = self._first_end or time.monotonic()
        failures = self._take(ended)
        if failures:
            first = self._first_of(failures)
            raise first from first.__cause__

    def _ended(self, timeout: float) -> list[Any]:
        ended, _ = ray.wait(list(self.waiting), num_returns=1, timeout=timeout, fetch_local=False)
        if ended and len(self.waiting) > 1:
            ended, _ = ray.wait(list(self.waiting), num_returns=len(self.waiting), timeout=0, fetch_local=False)
        return list(ended)

    def _take(self, ended: Sequence[Any]) -> list[Broken]:
        """Keep results; returns failures."""
        failures: list[Broken] = []
        for reference in ended:
            number = self.waiting.pop(reference)
            call = self._calls[number]
            self._pings.pop(call.rank, None)
            settled = call.settle()
            if isinstance(settled, Broken):
                failures.append(settled)
            else:
                self.results[number] = settled.value
        return failures

    def _first_of(self, failures: list[Broken]) -> Exception:
        """Of all ranks that fail together the one that failed first: it broke what the others waited for."""
        deadline = time.monotonic() + _OTHERS_SECONDS
        while self.waiting and (remaining := deadline - time.monotonic()) > 0:
            failures += self._take(self._ended(remaining))
        dead = [failure for failure in failures if isinstance(failure.error, WorkerDiedError)]
        return min(dead or failures, key=lambda failure: failure.at).error

    def look(self) -> None:
        """Ask the ranks that still work whether they live.

        Raises:
            WorkerStalledError: one does not, or lags.
        """
        options, now = self._options, time.monotonic()
        lagging = self._first_end is not None and now - self._first_end > options.lag_seconds
        for number in self.waiting.values():
            call = self._calls[number]
            ping, asked = self._pings.get(call.rank, (None, now))
            if ping is not None and ray.wait([ping], timeout=0)[0]:
                ping = None
            if ping is None:
                self._pings[call.rank] = (self._actors[call.rank].ping.remote(), now)
                if lagging:
                    raise WorkerStalledError(
                        f"{call.where}: still works {options.lag_seconds:g} seconds after another rank ended",
                        call.rank,
                        self._stacks(call.rank),
                    )
            elif now - asked > options.silent_seconds:
                raise WorkerStalledError(
                    f"{call.where}: its process did not answer for {now - asked:.0f} seconds", call.rank, ""
                )

    def _stacks(self, rank: int) -> str:
        try:
            return str(ray.get(self._actors[rank].stacks.remote(), timeout=_STACK_SECONDS))
        except ray.exceptions.RayError:
            return ""
