"""Worker: what sits on a device and does what the controller says."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of how many workers this is."""

    rank: int = 0
    world_size: int = 1


ALONE = Place()
_place: ContextVar[Place] = ContextVar("place", default=ALONE)


class Worker:
    """Subclass it for a role (actor, critic, ...), and mark with `register` what its group may call.

    `rank` and `world_size` are there before `__init__` runs, which need not call this class's.
    """

    _place: Place

    def __new__(cls, *_: Any, **__: Any) -> "Worker":
        worker = super().__new__(cls)
        worker._place = _place.get()
        return worker

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world_size(self) -> int:
        return self._place.world_size

    def close(self) -> None:
        """Let go of threads, files and memory; called once by the group's `close`."""


Made = TypeVar("Made", bound=Worker)


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
