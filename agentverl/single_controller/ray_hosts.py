"""The processes of one worker group in Ray: started, called, watched and ended."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.outcome import Failure
from agentverl.single_controller.pickling import pickled
from agentverl.single_controller.ray_call import RayCall, died
from agentverl.single_controller.ray_host import HostSettings, WorkerHost
from agentverl.single_controller.ray_pools import PlacePool, Slot, UnreservedSlot
from agentverl.single_controller.ray_watch import Watch
from agentverl.single_controller.worker import Place, WorkerClass
from agentverl.single_controller.worker_errors import ResourceError, WorkerStalledError

logger = logging.getLogger(__name__)

_MOST_CALLS_AT_ONCE = 100_000
_CLOSE_SECONDS = 20.0


class RayHosts:
    """One actor a rank.

    Args:
        names: by which other programs find the actors of a detached group.
    """

    def __init__(self, actors: Sequence[Any], names: Sequence[str], options: HostOptions) -> None:
        self.actors = list(actors)
        self.names = list(names)
        self.options = options

    @classmethod
    def start(cls, roles: Mapping[str, WorkerClass], pool: PlacePool, options: HostOptions) -> "RayHosts":
        """Start a process on each place of the pool, with a worker of each role.

        Raises:
            ResourceError: places or ports are missing.
            PluginError: something in the worker classes or their arguments does not pickle.
            WorkerError: a worker raised while it was made, or its process does not come up.
        """
        made = pickled(dict(roles))
        slots: Sequence[Slot | UnreservedSlot] = pool.slots(options.start_seconds)
        share = 1 / pool.max_colocate_count
        unique = "" if options.detached else f"-{uuid4().hex[:6]}"
        title = "+".join(worker_class.cls.__name__ for worker_class in roles.values())
        # The class's name is what the dashboard shows.
        actor_class = ray.remote(type(title, (WorkerHost,), {}))
        names = [f"{options.name}-rank{rank}of{len(slots)}{unique}" for rank in range(len(slots))]
        actors = [
            actor_class.options(
                name=names[rank],
                num_gpus=share if pool.has_gpus else 0,
                max_concurrency=_MOST_CALLS_AT_ONCE,
                lifetime="detached" if options.detached else None,
                **slot.scheduling(share),
            ).remote(_settings(options, rank))
            for rank, slot in enumerate(slots)
        ]
        hosts = cls(actors, names, options)
        try:
            hosts._set_up(made, slots)
        except BaseException:
            hosts.kill()
            raise
        return hosts

    @property
    def world_size(self) -> int:
        return len(self.actors)

    def _set_up(self, made: bytes, slots: Sequence[Slot | UnreservedSlot]) -> None:
        size = self.world_size
        address, port = self._first_address()
        calls = []
        for rank, (actor, slot) in enumerate(zip(self.actors, slots, strict=True)):
            place = Place(
                rank=rank, world_size=size, local_rank=slot.local_rank, local_world_size=slot.local_world_size
            )
            environment = {
                "RANK": rank,
                "WORLD_SIZE": size,
                "LOCAL_RANK": slot.local_rank,
                "LOCAL_WORLD_SIZE": slot.local_world_size,
                "MASTER_ADDR": address,
                "MASTER_PORT": port,
            }
            strings = {name: str(value) for name, value in environment.items()}
            calls.append(RayCall(actor.set_up.remote(made, place, strings), self.where(rank, "__init__"), rank, None))
        # A process that starts says nothing for as long as it imports.
        starting = replace(self.options, silent_seconds=self.options.start_seconds)
        self.gather(calls, starting)

    def _first_address(self) -> tuple[str, int]:
        asked = self.actors[0].address.remote(self.options.ports)
        done, _ = ray.wait([asked], timeout=self.options.start_seconds)
        where = self.where(0, "start")
        if not done:
            raise WorkerStalledError(
                f"{where}: its process did not come up within {self.options.start_seconds:g} seconds", 0, ""
            )
        try:
            address, port = ray.get(asked)
        except ray.exceptions.RayError as error:
            raise died(error, where, 0, self.log(0)) from error
        if port is None:
            low, high = self.options.ports or (0, 0)
            raise ResourceError(
                f"trainer.master_port_range=[{low}, {high}]: every port of it is taken on {address}; name another range"
            )
        return address, port

    def where(self, rank: int, method: str) -> str:
        """A rank and its method, for messages."""
        return f"rank {rank} of {self.world_size}, {self.options.name}.{method}"

    def log(self, rank: int) -> Path | None:
        """Where the process of a rank prints to."""
        return _settings(self.options, rank).log

    def gather(self, calls: Sequence[RayCall], options: HostOptions | None = None) -> list[Any]:
        """Wait for all calls; as soon as one fails, raise the first failure of all."""
        watch = Watch(self.actors, calls, options or self.options)
        while watch.waiting:
            watch.wait()
        return watch.results

    def close(self) -> None:
        """Close the workers and end their processes; may be called twice."""
        if not self.actors or not ray.is_initialized():
            return
        closing = [actor.close.remote() for actor in self.actors]
        done, open_ones = ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS, fetch_local=False)
        if open_ones:
            logger.warning(
                "%s: %d of %d processes do not close; killed", self.options.name, len(open_ones), len(closing)
            )
        for rank, call in enumerate(closing):
            if call in done:
                self._note_close(rank, call)
        self.kill()

    def _note_close(self, rank: int, call: Any) -> None:
        try:
            outcome = ray.get(call)
        except ray.exceptions.RayError:  # it is gone already, which whoever called it was told
            return
        if isinstance(outcome, Failure):
            logger.warning("%s: %s: %s", self.where(rank, "close"), outcome.kind, outcome.message)

    def kill(self) -> None:
        """End all processes at once."""
        actors, self.actors = self.actors, []
        for actor in actors:
            ray.kill(actor)


def _settings(options: HostOptions, rank: int) -> HostSettings:
    title = f"{options.name}-rank{rank}"
    log = None if options.logs is None else options.logs.absolute() / f"{title}.log"
    return HostSettings(title=title, folder=Path.cwd(), log=log)
