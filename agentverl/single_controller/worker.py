"""Worker: what sits on a device and does what the controller says."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of how many workers this is."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Its number on its machine."""
    local_world_size: int = 1


@dataclass(frozen=True, slots=True)
class MeshRank:
    """Where a worker stands in a mesh of devices."""

    dp_rank: int
    """Which share of a batch it works on."""
    collects: bool
    """Whether what it returns is the result of its share; true for one worker of each share."""


ALONE = Place()
_place: ContextVar[Place] = ContextVar("place", default=ALONE)


class Worker:
    """Subclass it for a role (actor, critic, ...), and mark with `register` what its group may call.

    `rank` and `world_size` are there before `__init__` runs, which need not call this class's.
    """

    _place: Place
    _meshes: dict[str, MeshRank]

    def __new__(cls, *_: Any, **__: Any) -> "Worker":
        worker = super().__new__(cls)
        worker._place = _place.get()
        worker._meshes = {}
        return worker

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        return self._place.local_rank

    @property
    def local_world_size(self) -> int:
        return self._place.local_world_size

    def join_mesh(self, name: str, dp_rank: int, *, collects: bool) -> None:
        """Say where this worker stands, before the group is called in a mode of that mesh."""
        self._meshes[name] = MeshRank(dp_rank, collects)

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """verl's name of `join_mesh`."""
        self.join_mesh(mesh_name, dp_rank, collects=is_collect)

    def mesh_rank(self, name: str) -> MeshRank | None:
        """Where this worker stands in a mesh; None where it did not join."""
        return self._meshes.get(name)

    def close(self) -> None:
        """Let go of threads, files and memory; called once by the group's `close`."""


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """A worker class with the arguments that each worker of a group is made with."""

    cls: Callable[..., Worker]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, place: Place) -> Worker:
        """The worker for a place."""
        token = _place.set(place)
        try:
            return self.cls(*self.args, **self.kwargs)
        finally:
            _place.reset(token)
