"""RayWorkerGroup: a worker group whose workers are Ray actors."""

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

import ray

from agentverl.errors import InfrastructureError
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.pending import Started
from agentverl.single_controller.ray_call import Broken, RayCall
from agentverl.single_controller.ray_hosts import RayHosts
from agentverl.single_controller.ray_pools import PlacePool
from agentverl.single_controller.ray_watch import Watch
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_errors import ResourceError, WorkerClassError, WorkerDiedError
from agentverl.single_controller.worker_group import WorkerGroup

_ALONE = ""


class RayClassWithInitArgs:
    """verl's form of a WorkerClass: the class, plain or of `ray.remote`, and what each worker is made with."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        metadata = getattr(cls, "__ray_metadata__", None)
        plain = cls if metadata is None else metadata.modified_class.__ray_actor_class__
        self.roles = {_ALONE: WorkerClass(plain, args, kwargs)}


def create_colocated_worker_cls(class_dict: Mapping[str, "RayClassWithInitArgs | WorkerClass"]) -> RayClassWithInitArgs:
    """Workers of several roles in each process of one group; `RayWorkerGroup.spawn` gives the group of each role."""
    colocated = RayClassWithInitArgs(None)
    colocated.roles = {role: _roles(given)[_ALONE] for role, given in class_dict.items()}
    return colocated


class RayWorkerGroup(WorkerGroup):
    """A group on the places of a pool, one process a place.

    Args:
        resource_pool: the places; several groups may share them.
        ray_cls_with_init: the worker class with its arguments.
        name_prefix: names the group in the dashboard, in logs and errors; None: after the class.
        detached: the group outlives this program; others find it with `from_detached`.
        options: what else may be said of the processes.
    """

    def __init__(
        self,
        resource_pool: PlacePool,
        ray_cls_with_init: RayClassWithInitArgs | WorkerClass,
        name_prefix: str | None = None,
        detached: bool = False,
        options: HostOptions | None = None,
    ) -> None:
        roles = _roles(ray_cls_with_init)
        for worker_class in roles.values():
            super().__init__(worker_class.cls, resource_pool.world_size)
        name = name_prefix or (options or HostOptions(name=self.worker_cls.__name__)).name
        options = replace(options or HostOptions(), name=name, detached=detached)
        resource_pool.detached = resource_pool.detached or detached
        self._join(RayHosts.start(roles, resource_pool, options), roles)

    def _join(self, hosts: RayHosts, roles: Mapping[str, WorkerClass], role: str | None = None) -> None:
        self._roles = dict(roles)
        self._role = next(iter(roles)) if role is None else role
        super().__init__(self._roles[self._role].cls, hosts.world_size)
        self._hosts = hosts
        if role is None and self._role != _ALONE:
            # Which of the colocated roles is meant is said by `spawn`.
            self._methods = {}

    @classmethod
    def from_detached(
        cls,
        worker_names: Sequence[str],
        ray_cls_with_init: RayClassWithInitArgs | WorkerClass,
        options: HostOptions | None = None,
    ) -> "RayWorkerGroup":
        """The group that another program left, by the names of its processes (`worker_names` there).

        Raises:
            ResourceError: a process of that name does not live.
        """
        group = cls.__new__(cls)
        try:
            actors = [ray.get_actor(name) for name in worker_names]
        except ValueError as error:
            raise ResourceError(f"no detached worker group: {error}") from error
        roles = _roles(ray_cls_with_init)
        hosts = RayHosts(actors, worker_names, replace(options or HostOptions(), detached=True))
        group._join(hosts, roles)
        return group

    @property
    def worker_names(self) -> list[str]:
        """The names of the processes, for `from_detached`."""
        return self._hosts.names

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, "RayWorkerGroup"]:
        """The group of each of the named roles, of those that the processes hold.

        Raises:
            WorkerClassError: a role that they do not hold.
        """
        groups = {}
        for role in prefix_set:
            if role not in self._roles:
                raise WorkerClassError(f"no role {role!r} in these workers; they hold {', '.join(self._roles)}")
            group = type(self).__new__(type(self))
            group._join(self._hosts, self._roles, role)
            groups[role] = group
        return groups

    def start(self, rank: int, method: str, arguments: Arguments, *, returns: bool = True) -> RayCall:
        return self._send(rank, (self._role, method, arguments, returns), in_turn=True)

    def _send(self, rank: int, asked: tuple[str, str, Arguments, bool], *, in_turn: bool) -> RayCall:
        where = self._where(rank, asked[1])
        if not self._hosts.actors:
            raise WorkerClassError(f"{where}: the group is closed")
        return RayCall(self._hosts.send(rank, asked, in_turn=in_turn), where, rank, self._hosts.log(rank))

    def gather(self, started: Sequence[Started]) -> list[Any]:
        return self._hosts.gather([call for call in started if isinstance(call, RayCall)])

    async def run_async(self, rank: int, method: str, arguments: Arguments, *, returns: bool = True) -> Any:
        call = self._send(rank, (self._role, method, arguments, returns), in_turn=False)
        return await awaited(call, Watch(self._hosts.actors, [call], self._hosts.options))

    def resident(self, rank: int, name: str) -> Any:
        contract = get_type_hints(getattr(self.worker_cls, name))["return"]
        return Resident(self._hosts.actors[rank], (self._role, name), contract, self._where(rank, name))

    def restart(self, rank: int) -> None:
        self._hosts.restart(rank)

    def end_rank(self, rank: int) -> None:
        self._hosts.end_rank(rank)

    def close(self) -> None:
        self._hosts.close()


async def awaited(call: RayCall, watch: Watch | None = None) -> Any:
    """The result of a call; cancelling this cancels the method. A `watch` over the call says where it stalls."""
    future = asyncio.ensure_future(call.reference)
    try:
        while watch is not None and not (await asyncio.wait({future}, timeout=watch.look_seconds))[0]:
            watch.look()
        settled = call.read(await future)
    except asyncio.CancelledError:
        ray.cancel(call.reference)
        future.add_done_callback(_seen)
        raise
    except ray.exceptions.RayError as error:
        settled = call.lost(error)
    if isinstance(settled, Broken):
        raise settled.error from settled.error.__cause__
    return settled.value


def _seen(future: "asyncio.Future[Any]") -> None:
    """Nobody waits for what was cancelled, so nobody else looks at its end."""
    if not future.cancelled():
        future.exception()


class Resident:
    """Stands for an object that lives in a worker's process: its async methods are awaited there.

    It may be sent to other processes. Where the process is gone, calls raise InfrastructureError.
    """

    def __init__(self, actor: Any, name: tuple[str, str], contract: type, where: str) -> None:
        self._actor = actor
        self._name = name
        self._contract = contract
        self._where = where

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resident) and (self._actor, self._name) == (other._actor, other._name)

    def __hash__(self) -> int:
        return hash((self._actor, self._name))

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        declared = inspect.getattr_static(self._contract, attribute)
        if isinstance(declared, property):
            return self._call(self._actor.read_resident.remote(*self._name, attribute)).get()
        if not inspect.iscoroutinefunction(declared):
            raise AttributeError(f"{self._where}: {attribute} is neither async nor a property, so it stays where it is")

        async def method(*args: Any, **kwargs: Any) -> Any:
            sent = self._actor.call_resident.remote(*self._name, attribute, (args, kwargs))
            try:
                return await awaited(self._call(sent))
            except WorkerDiedError as error:
                raise InfrastructureError(str(error), "model") from error

        return method

    def _call(self, sent: Any) -> RayCall:
        return RayCall(sent, self._where, 0, None)


def _roles(given: RayClassWithInitArgs | WorkerClass) -> dict[str, WorkerClass]:
    return {_ALONE: given} if isinstance(given, WorkerClass) else given.roles
