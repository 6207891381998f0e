"""A worker that says who it is and what it got, in every mode of dispatch."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from agentverl.errors import InfrastructureError
from agentverl.protocol.column_store import refer
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ray_column_store import RayColumnStore
from agentverl.single_controller.dispatch import (
    Dispatch,
    DispatchMode,
    Execute,
    GroupSize,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from agentverl.single_controller.splitting import same_for_all
from agentverl.single_controller.worker import Worker


def _every_other(group: GroupSize, values: list[Any]) -> tuple[tuple[list[Any]], dict[str, Any]]:
    return (values[:: len(values) // group.world_size],), {}


class Server:
    """Lives on a worker."""

    def __init__(self, number: int) -> None:
        self.requests = 0
        self.number = number

    @property
    def served(self) -> int:
        return self.requests

    async def answer(self, question: str) -> str:
        if question == "fail":
            raise InfrastructureError("no answer", "model")
        self.requests += 1
        return f"{self.number}: {question}"

    def not_async(self) -> None: ...


class Reporter(Worker):
    """Says who it is and what it got."""

    def __init__(self, offset: int = 0, fail_at: int | None = None) -> None:
        if self.rank == fail_at:
            raise OSError("no device")
        self.number = self.rank + offset
        self._server = Server(self.number)
        self.closed = False

    @register(Dispatch.ONE_TO_ALL)
    def same(self, *args: Any, **kwargs: Any) -> Any:
        return self.number, args, kwargs

    @register(Dispatch.RANK_ZERO)
    def first(self, value: Any) -> Any:
        return self.number, value

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def first_too(self) -> int:
        return self.number

    @register()
    def shared_or_same(self, *values: Any) -> Any:
        return values

    @register(Dispatch.DP_COMPUTE)
    def own(self, value: Any, *, other: Any) -> Any:
        return value, other

    @register(Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto, amount: int = 0) -> DataProto:
        metrics = {"rows": len(data)}
        return DataProto({"a": data.batch.tensor("a") + amount}, meta_info={"metrics": metrics})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def nothing(self, data: DataProto) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO)
    def number_of(self, data: DataProto) -> int:
        return len(data)

    @register(Dispatch.DP_COMPUTE_METRIC)
    def rows(self, data: DataProto) -> int:
        return len(data)

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, value: Any) -> Any:
        if value == "fail":
            raise RuntimeError("later")
        return value

    @register(Dispatch.ONE_TO_ALL)
    def put_away(self) -> DataProto:
        """A column that this process holds."""
        return refer(DataProto({"a": torch.tensor([self.rank])}), ["a"], RayColumnStore())

    @register(Dispatch.ONE_TO_ALL)
    async def leave(self) -> None:
        sys.exit("done")

    @register(Dispatch.ONE_TO_ALL)
    async def soon(self, fail_at: int | None = None) -> int:
        await asyncio.sleep(0)
        if self.rank == fail_at:
            raise RuntimeError("not now")
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, at: int, error: Exception) -> int:
        if self.rank == at:
            raise error
        return self.rank

    @register(DispatchMode(lambda world_size, arguments: [((rank,), {}) for rank in range(world_size)], sum))
    def ranks(self, rank: int) -> int:
        return rank

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, function: Callable[[torch.Tensor], torch.Tensor], data: DataProto) -> DataProto:
        return DataProto({"a": function(data.batch.tensor("a"))})

    @register(Dispatch.DIRECT_ROLLOUT_METHOD)
    def direct(self) -> int:
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def join(self, name: str, shares: int) -> None:
        """Groups of consecutive ranks work on one share; the last of them collects."""
        size = self.world_size // shares
        self.join_mesh(name, self.rank // size, collects=self.rank % size == size - 1)

    @register(Dispatch.ONE_TO_ALL)
    def join_collecting(self, name: str, ranks: list[int]) -> None:
        """Two consecutive ranks work on one share."""
        self.join_mesh(name, self.rank // 2, collects=self.rank in ranks)

    @register(Dispatch.ONE_TO_ALL)
    def join_backwards(self, name: str) -> None:
        """A share for each rank, the last one for the first."""
        self.join_mesh(name, self.world_size - 1 - self.rank, collects=True)

    @register(make_nd_compute_dataproto_dispatch_fn("pairs"))
    def in_pairs(self, data: DataProto) -> DataProto:
        return DataProto({"a": data.batch.tensor("a"), "rank": torch.full((len(data),), self.rank)})

    @register(make_nd_compute_dataproto_dispatch_fn("pairs"), blocking=False)
    def in_pairs_later(self, data: DataProto) -> DataProto:
        return self.in_pairs(data)

    @register(DispatchMode(same_for_all, lambda results: results[0]), blocking=False)
    def of_first_later(self, data: DataProto) -> DataProto:
        return DataProto({"a": data.batch.tensor("a") + 100 * self.rank})

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def add_later(self, data: DataProto, amount: int = 1) -> DataProto:
        return DataProto({"a": data.batch.tensor("a") + amount})

    @register(Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def add_unseen(self, data: DataProto, amount: int = 1) -> DataProto:
        return self.add_later(data, amount)

    @register(Dispatch.ONE_TO_ALL, materialize_futures=False)
    def rows_unseen(self, data: DataProto) -> int:
        return len(data)

    @register({"dispatch_fn": _every_other, "collect_fn": lambda group, results: results[: group.world_size]})
    def in_verl_form(self, value: Any) -> Any:
        return value

    @register(Dispatch.ONE_TO_ALL)
    def wait(self, seconds: list[float]) -> int:
        time.sleep(seconds[self.rank])
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def end_process(self, at: int) -> None:
        """One rank ends as by the kernel, the others wait for it."""
        if self.rank == at:
            sys.stderr.write("the last words of a rank\n")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    @register(Dispatch.ONE_TO_ALL)
    def fail_after(self, seconds: list[float]) -> None:
        time.sleep(seconds[self.rank])
        raise RuntimeError(f"after {seconds[self.rank]:g} seconds")

    @register(Dispatch.ONE_TO_ALL)
    async def wait_softly(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.number = -1
            raise

    @register(Dispatch.ONE_TO_ALL)
    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @register(Dispatch.ONE_TO_ALL)
    def current_number(self) -> int:
        return self.number

    @register(Dispatch.ONE_TO_ALL)
    def process_id(self) -> int:
        return os.getpid()

    def server(self) -> "Server":
        return self._server

    def unregistered(self) -> int:
        return self.rank

    def close(self) -> None:
        self.closed = True
