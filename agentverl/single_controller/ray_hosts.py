"""The processes of one worker group in Ray: started, called, watched and ended."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from agentverl.single_controller.call_order import Turn
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.outcome import Failure
from agentverl.single_controller.pickling import pickled
from agentverl.single_controller.ports import taken
from agentverl.single_controller.ray_call import RayCall, died
from agentverl.single_controller.ray_host import HostSettings, WorkerHost
from agentverl.single_controller.ray_pools import PlacePool, Slot, UnreservedSlot
from agentverl.single_controller.ray_watch import Watch
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker import Place, WorkerClass
from agentverl.single_controller.worker_errors import ResourceError, WorkerClassError, WorkerStalledError

logger = logging.getLogger(__name__)

_MOST_CALLS_AT_ONCE = 100_000
_CLOSE_SECONDS = 20.0


class RayHosts:
    """One actor a rank.

    Args:
        names: by which other programs find the actors of a detached group.
        beginning: how they are begun; None for those that another program began.
    """

    def __init__(
        self, actors: Sequence[Any], names: Sequence[str], options: HostOptions, beginning: "_Beginning | None" = None
    ) -> None:
        self.actors = list(actors)
        self.names = list(names)
        self.options = options
        self._beginning = beginning
        self._meeting_point: tuple[str, int] | None = None
        self._caller = uuid4().hex
        self._sent = [0] * len(self.actors)
        self._sending = threading.Lock()

    @classmethod
    def start(cls, roles: Mapping[str, WorkerClass], pool: PlacePool, options: HostOptions) -> "RayHosts":
        """Start a process on each place of the pool, with a worker of each role.

        Raises:
            ResourceError: places or ports are missing.
            PluginError: something in the worker classes or their arguments does not pickle.
            WorkerError: a worker raised while it was made, or its process does not come up.
        """
        beginning = _Beginning(pickled(dict(roles)), _title(roles), pool.slots(options.start_seconds), pool, options)
        names = [beginning.name(rank) for rank in range(pool.world_size)]
        hosts = cls([beginning.actor(rank, name) for rank, name in enumerate(names)], names, options, beginning)
        try:
            hosts._set_up(range(pool.world_size))
        except BaseException:
            hosts.kill()
            raise
        return hosts

    @property
    def world_size(self) -> int:
        return len(self.actors)

    def restart(self, rank: int) -> None:
        """Kill the process of a rank and start another one in its place.

        Raises:
            WorkerClassError: another program began the group, or it is closed.
            ResourceError: the machine of its place is gone.
            WorkerError: see `start`.
        """
        if self._beginning is None or not self.actors:
            raise WorkerClassError(
                f"{self.options.name}: a rank is restarted by the program that started its group, before it closes it"
            )
        self._beginning.require_place(rank)
        self.end_rank(rank)
        self.names[rank] = self._beginning.name(rank)
        with self._sending:
            self.actors[rank] = self._beginning.actor(rank, self.names[rank])
            self._sent[rank] = 0
        self._set_up([rank])

    def send(self, rank: int, asked: tuple[str, str, Arguments, bool], *, in_turn: bool) -> Any:
        """Start a method on a rank; Ray's reference to its outcome.

        Args:
            asked: role, method, arguments, and whether the result is wanted.
            in_turn: after all that was sent there in turn before; not for what may be cancelled before it has begun.
        """
        if not in_turn:
            return self.actors[rank].call.remote(*asked)
        with self._sending:  # several threads of a controller may send, and a number must be sent once
            sent = self.actors[rank].call.remote(*asked, Turn(self._caller, self._sent[rank]))
            self._sent[rank] += 1
        return sent

    def end_rank(self, rank: int) -> None:
        """Kill the process of a rank; one that is dead already stays so, and those of a closed group are."""
        if self.actors:
            ray.kill(self.actors[rank])

    def _set_up(self, ranks: Sequence[int]) -> None:
        assert self._beginning is not None
        self._meeting_point = self._meeting_point or self._first_address()
        calls = []
        for rank in ranks:
            place, environment = self._beginning.surroundings(rank, self._meeting_point)
            asked = self.actors[rank].set_up.remote(self._beginning.made, place, environment)
            calls.append(RayCall(asked, self.where(rank, "__init__"), rank, None))
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
            raise taken(self.options.ports, address)
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


class _Beginning:
    """How the processes of a group begin."""

    def __init__(
        self, made: bytes, title: str, slots: Sequence[Slot | UnreservedSlot], pool: PlacePool, options: HostOptions
    ) -> None:
        self.made = made
        self._slots = slots
        self._share = 1 / pool.max_colocate_count
        self._has_gpus = pool.has_gpus
        self._options = options
        # The class's name is what the dashboard shows.
        self._actor_class = ray.remote(type(title, (WorkerHost,), {}))

    def name(self, rank: int) -> str:
        """A name for the process of a rank; another one each time, unless others shall find it by its name."""
        unique = "" if self._options.detached else f"-{uuid4().hex[:6]}"
        return f"{self._options.name}-rank{rank}of{len(self._slots)}{unique}"

    def require_place(self, rank: int) -> None:
        """Raise ResourceError where the machine of a rank is gone: Ray would wait for another one."""
        if not self._slots[rank].is_there:
            raise ResourceError(f"{self._options.name}: the machine of rank {rank} is gone")

    def actor(self, rank: int, name: str) -> Any:
        """A new process on the place of a rank."""
        return self._actor_class.options(
            name=name,
            num_gpus=self._share if self._has_gpus else 0,
            max_concurrency=_MOST_CALLS_AT_ONCE,
            lifetime="detached" if self._options.detached else None,
            **self._slots[rank].scheduling(self._share),
        ).remote(_settings(self._options, rank))

    def surroundings(self, rank: int, meeting_point: tuple[str, int]) -> tuple[Place, dict[str, str]]:
        """The place of a rank, and the environment variables that say the same to libraries."""
        size, slot = len(self._slots), self._slots[rank]
        place = Place(rank=rank, world_size=size, local_rank=slot.local_rank, local_world_size=slot.local_world_size)
        address, port = meeting_point
        environment = {
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": slot.local_rank,
            "LOCAL_WORLD_SIZE": slot.local_world_size,
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        return place, {name: str(value) for name, value in environment.items()}


def _title(roles: Mapping[str, WorkerClass]) -> str:
    return "+".join(worker_class.cls.__name__ for worker_class in roles.values())


def _settings(options: HostOptions, rank: int) -> HostSettings:
    title = f"{options.name}-rank{rank}"
    log = None if options.logs is None else options.logs.absolute() / f"{title}.log"
    return HostSettings(title=title, folder=Path.cwd(), log=log)
