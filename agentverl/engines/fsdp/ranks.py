"""Ranks: the processes that hold one model together, each on a device of its own."""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentverl.engines.settings import ShardingSettings
from agentverl.errors import AgentverlError, SettingsError

_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}

Value = TypeVar("Value")


class Ranks:
    """The ranks of the default process group, which all engines of a process share.

    Args:
        device: `cpu` or `cuda`.
        settings: how many ranks share one copy of a model, and how long they wait for each other.

    Raises:
        SettingsError: the ranks cannot be divided into copies of `fsdp_size`.
    """

    def __init__(self, device: str, settings: ShardingSettings) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        shards = self.size if settings.fsdp_size < 0 else settings.fsdp_size
        if not shards or self.size % shards:
            raise SettingsError(
                f"fsdp_config.fsdp_size={settings.fsdp_size} does not divide the {self.size} ranks; expected a number "
                "that does, or -1 for all ranks"
            )
        self.device = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self.mesh = _mesh(device, self.size // shards, shards)

    @property
    def group(self) -> Any:
        """The process group of all ranks."""
        return dist.group.WORLD

    @cached_property
    def checkpoint_group(self) -> Any:
        """A group in host memory for checkpoints that are written while training goes on; all ranks ask together."""
        return dist.new_group(backend="gloo")

    @classmethod
    def join(cls, device: str, settings: ShardingSettings) -> "Ranks":
        """Join the ranks that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT name, as torchrun sets them.

        Raises:
            SettingsError: one of the names is missing.
        """
        if not dist.is_initialized():
            missing = [name for name in _NEEDED if name not in os.environ]
            if world_size() > 1 and missing:
                raise SettingsError(f"WORLD_SIZE is {world_size()}, but {', '.join(missing)} are not set")
            if device == "cuda":
                # A worker of Ray sees only its own device, whichever its rank on the node is.
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            timeout = timedelta(seconds=settings.timeout_seconds)
            if world_size() > 1:
                dist.init_process_group(_BACKENDS[device], timeout=timeout)
            else:
                store = torch._C._distributed_c10d.HashStore()
                dist.init_process_group(_BACKENDS[device], timeout=timeout, store=store, rank=0, world_size=1)
        return cls(device, settings)

    def in_lockstep(self, schedule: Callable[[], list[list[int]]]) -> list[list[int]]:
        """This rank's micro-batches, with empty ones at the end until there are as many as on any other rank.

        Raises:
            AgentverlError: what making the schedule raised on a rank; all ranks raise it, so that none waits.
        """
        mine: list[list[int]] = []
        failure: AgentverlError | None = None
        try:
            mine = schedule()
        except AgentverlError as error:
            failure = error
        for rank, (_, problem) in enumerate(outcomes := self.gather((len(mine), failure))):
            if problem is not None:
                raise failure or AgentverlError(f"rank {rank} of {self.size} stopped: {problem}")
        return mine + [[] for _ in range(max(count for count, _ in outcomes) - len(mine))]

    def gather(self, value: Value) -> list[Value]:
        """The small values of all ranks, on all of them."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Value | None) -> Value:
        """What rank 0 gives, on all ranks."""
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        first: Value = values[0]
        return first

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fill the tensor with that of rank 0."""
        dist.broadcast(tensor, src=0)


def world_size() -> int:
    """How many ranks there are, by the environment."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _mesh(device: str, copies: int, shards: int) -> DeviceMesh:
    if copies == 1:
        return init_device_mesh(device, (shards,), mesh_dim_names=("shard",))
    return init_device_mesh(device, (copies, shards), mesh_dim_names=("replicate", "shard"))
