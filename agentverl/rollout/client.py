"""The model client of one trajectory: it holds the lease, keeps the deadline, and records every sampled token."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BadInputError, BoundaryError, InfrastructureError
from agentverl.rollout.continued import Continued
from agentverl.rollout.record import Record
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.turnstile import Turnstile
from agentverl.trajectory import TokenOutput

_MOST_MOVES = 3
"""From one server to another, for one request."""


class HeldServer(Protocol):
    """The server that a trajectory was given (`agentverl.rollout.router.Lease`)."""

    request_id: str

    @property
    def replica(self) -> RolloutReplica: ...
    async def open_more(self, request_id: str) -> None: ...
    async def renew(self, failed: RolloutReplica | None = None) -> None: ...
    async def follow(self) -> None: ...


class Gate:
    """Closed while the weights are changed by a pause: requests wait, and the wait counts for no deadline."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.listeners: list[Callable[[bool], None]] = []
        """Told whether it is open, whenever that is said."""

    def close(self) -> None:
        self._open.clear()
        self._tell(False)

    def open(self) -> None:
        self._open.set()
        self._tell(True)

    def set(self, is_open: bool) -> None:
        """Open or close it."""
        if is_open:
            self.open()
        else:
            self.close()

    def _tell(self, is_open: bool) -> None:
        for listener in self.listeners:
            listener(is_open)

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def passed(self) -> float:
        """Wait until the gate is open; the seconds that took."""
        if self._open.is_set():
            return 0.0
        started = time.monotonic()
        await self._open.wait()
        return time.monotonic() - started


class TrajectoryClient:
    """What an agent loop calls `server_manager`: `generate` on the server that the trajectory was given.

    `record` holds every answer, for the check of what the loop returns. Cancelling `generate` aborts
    the request on the server. Sub-agents have request ids of their own; with `one_request_at_a_time` they share the
    trajectory's, so that a server that waits for every open lease is never kept waiting by a parent.

    Args:
        on_queued: told the seconds that a request waited, which count for no deadline.
        defaults: sampling parameters, by prompt and record, of requests that leave `max_tokens` or `seed` open.
        most_tokens: asked of a server at a time; a longer answer comes in pieces, of which one can be lost with it.
    """

    def __init__(
        self,
        lease: HeldServer,
        *,
        gate: Gate | None = None,
        turnstile: Turnstile | None = None,
        timeout_seconds: float | None = None,
        one_request_at_a_time: bool = False,
        on_queued: Callable[[float], None] | None = None,
        defaults: Callable[[list[int], Record], dict[str, Any]] | None = None,
        most_tokens: int | None = None,
    ) -> None:
        self.record = Record()
        self._lease = lease
        self._gate = gate
        self._turnstile = turnstile
        self._timeout_seconds = timeout_seconds
        self._turn = asyncio.Lock() if one_request_at_a_time else None
        self._on_queued = on_queued
        self._defaults = defaults
        self._most_tokens = most_tokens

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        """Sample an answer to `prompt_ids`.

        Raises:
            InfrastructureError: the server failed or did not answer in time (boundary "model").
            BadInputError: a sampling parameter that the server refuses.
        """
        if self._defaults is not None and not ("max_tokens" in sampling_params and "seed" in sampling_params):
            sampling_params = {**self._defaults(prompt_ids, self.record), **sampling_params}
        media = {name: value for name, value in media.items() if value is not None}
        if self._gate is not None and not self._gate.is_open:
            self._queued(await self._gate.passed())
        if self._turn is None:
            output = await self._complete(request_id, prompt_ids, sampling_params, media)
        else:
            async with self._turn:
                output = await self._complete(self._lease.request_id, prompt_ids, sampling_params, media)
        if self._turnstile is not None:
            await self._turnstile.passed()
        temperature = float(sampling_params.get("temperature", 1.0))
        self.record.add(request_id, prompt_ids, output, temperature)
        return output

    async def _complete(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], media: dict[str, Any]
    ) -> TokenOutput:
        """An answer; what a server gives back when it leaves is continued by another one, from there."""
        answer = Continued(prompt_ids, sampling_params, self._most_tokens)
        while True:
            output = await self._on_some_server(request_id, answer, media)
            self._queued(float(output.extra_fields.get("queue_seconds", 0.0)))
            if answer.takes(output):
                return answer.output
            if output.stop_reason == "aborted":
                await self._lease.follow()
            if self._gate is not None:
                self._queued(await self._gate.passed())

    async def _on_some_server(self, request_id: str, answer: "Continued", media: dict[str, Any]) -> TokenOutput:
        """What a server samples next; where one is lost, what another samples from the same tokens."""
        for last in (*(False,) * _MOST_MOVES, True):
            replica = self._lease.replica
            try:
                if request_id != self._lease.request_id:
                    await self._lease.open_more(request_id)
                return await self._ask(request_id, answer.prompt_ids, answer.sampling_params, media)
            except InfrastructureError as error:
                if last or isinstance(error.__cause__, OutOfTimeError):
                    raise
                await self._lease.renew(replica)
                if self._lease.replica is replica:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _ask(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], media: dict[str, Any]
    ) -> TokenOutput:
        request = self._lease.replica.generate(
            request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **media
        )
        try:
            if self._timeout_seconds is None:
                return await request
            return await bounded(request, self._timeout_seconds)
        except (BadInputError, BoundaryError):
            raise
        except OutOfTimeError as error:
            raise InfrastructureError(f"the rollout server gave {error}", "model") from error
        except Exception as error:  # whatever a server raises, the policy did not cause it
            raise InfrastructureError(f"the rollout server failed: {type(error).__name__}: {error}", "model") from error

    def _queued(self, seconds: float) -> None:
        if seconds > 0 and self._on_queued is not None:
            self._on_queued(seconds)
