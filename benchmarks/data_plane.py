"""Bytes that a step sends when columns travel as references, against sending the batch by value; the last line is JSON.

Usage: python benchmarks/data_plane.py [--trajectories 1024] [--tokens 8000] [--image-bytes 300000] [--ranks 2]

A runner's process makes the batch, a controller's process has two or more ranks compute old log-probs and reference
log-probs and update the actor. There is no model: ranks read every id and every image byte and answer with columns of
the right sizes. Counted is what processes give Ray to send, arguments and results, pickled as Ray pickles them.

- `bytes of three calls`: from the batch on, old log-probs, reference and actor; required is a fifth, a ratio of 5;
- `bytes of the step`: those, and the hand-over from the runner;
- `peak memory of the controller`: its resident bytes at most, beyond those before the step.

By reference, the program also fails where the values of a column of token ids or of images reach the controller.
"""

import argparse
import pickle
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import ray
import torch
from comparison import Case, report

from agentverl.protocol.column_store import refer, referred, resolve
from agentverl.protocol.columns import object_array
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.protocol.ray_column_store import RayColumnStore
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.ray_call import RayCall
from agentverl.single_controller.ray_cluster import RayInit, connect, disconnect
from agentverl.single_controller.ray_group import RayWorkerGroup
from agentverl.single_controller.ray_pools import RayResourcePool
from agentverl.single_controller.splitting import Arguments
from agentverl.single_controller.worker import Worker, WorkerClass
from agentverl.trainer.memory import MemoryMeter

FEWEST_TIMES_LESS = 5.0
HEAVY = ["prompts", "responses", "image"]
PER_TOKEN = ["response_mask", "temperature", "rollout_log_probs", "token_level_scores"]
PROMPT_TOKENS = 16
STORE_BYTES = 6 * 2**30


@dataclass(frozen=True, slots=True)
class Size:
    """Of the batch."""

    trajectories: int
    tokens: int
    image_bytes: int
    ranks: int


class Runner:
    """A fake of the runner of episodes: random ids and images."""

    def __init__(self, size: Size) -> None:
        random, lengths = np.random.default_rng(0), [size.tokens] * size.trajectories
        count = size.tokens * size.trajectories

        def ragged(values: np.ndarray, rows: list[int] = lengths) -> Ragged:
            return Ragged.from_lengths(torch.from_numpy(values), rows)

        prompts = [PROMPT_TOKENS] * size.trajectories
        self._batch = DataProto(
            {
                "prompts": ragged(random.integers(0, 32000, sum(prompts)), prompts),
                "responses": ragged(random.integers(0, 32000, count)),
                "response_mask": ragged(np.ones(count, np.int64)),
                "temperature": ragged(np.ones(count, np.float32)),
                "rollout_log_probs": ragged(random.random(count, np.float32)),
                "token_level_scores": ragged(np.zeros(count, np.float32)),
            },
            {
                "image": object_array(
                    random.integers(0, 256, size.image_bytes, np.uint8) for _ in range(size.trajectories)
                ),
                "uid": object_array(f"row {number // 4}" for number in range(size.trajectories)),
            },
        )

    def batch(self, by_reference: bool) -> tuple[DataProto, int]:
        """The batch, and the bytes that it takes to send it and what it refers to."""
        if not by_reference:
            return self._batch, sent_bytes(self._batch)
        sent = refer(self._batch, [*HEAVY, *PER_TOKEN], RayColumnStore())
        return sent, sent_bytes(sent) + sent_bytes(self._batch)


class Ranks(Worker):
    """A fake of the policy's workers: reads all ids and images, and answers with columns of the right size."""

    @register(Dispatch.DP_COMPUTE_PROTO)
    def log_probs(self, data: DataProto, column: str, by_reference: bool) -> DataProto:
        responses, answer = data.batch.ragged("responses"), float(_read(data) % 7)
        computed = DataProto({column: responses.like(torch.full((len(responses.values),), answer))})
        return refer(computed, [column], RayColumnStore()) if by_reference else computed

    @register(Dispatch.DP_COMPUTE_METRIC)
    def update(self, data: DataProto) -> int:
        return _read(data)


def _read(data: DataProto) -> int:
    images = sum(int(image.sum(dtype=np.int64)) for image in data.non_tensor_batch["image"])
    return images + int(data.batch.ragged("responses").values.sum()) + int(data.batch.ragged("prompts").values.sum())


class CountingGroup(RayWorkerGroup):
    """Counts what is sent to the ranks."""

    sent = 0

    def start(self, rank: int, method: str, arguments: Arguments, *, returns: bool = True) -> RayCall:
        self.sent += sent_bytes(arguments)
        return super().start(rank, method, arguments, returns=returns)


class Controller:
    """The steps of a trainer, without what does not move bytes."""

    def __init__(self, size: Size) -> None:
        self._pool = RayResourcePool([size.ranks])
        self._group = CountingGroup(self._pool, WorkerClass(Ranks))

    def step(self, runner: Any, by_reference: bool) -> dict[str, float]:
        """One step; the bytes that were sent for it and the memory that this process took."""
        resident = psutil.Process().memory_info().rss
        with MemoryMeter(0.02) as memory:
            started = time.perf_counter()
            batch, handed_over = ray.get(runner.batch.remote(by_reference))
            # What a controller looks at; by value it is there already.
            scalars = resolve(batch.select(non_tensor_batch_keys=PER_TOKEN)) if by_reference else batch
            read = sent_bytes(scalars) if by_reference else 0
            calls = self._calls(batch, scalars, by_reference)
            seconds = time.perf_counter() - started
        held = [name for name in HEAVY if name in scalars.batch or (by_reference and name not in referred(batch))]
        if by_reference and held:
            raise RuntimeError(f"the controller holds the values of {', '.join(held)}")
        memory_bytes = memory.peak_bytes - resident
        return {"calls": calls, "step": handed_over + read + calls, "memory": memory_bytes, "seconds": seconds}

    def close(self) -> None:
        """End the ranks."""
        self._group.close()
        self._pool.release()

    def _calls(self, batch: DataProto, scalars: DataProto, by_reference: bool) -> int:
        """Old log-probs, reference, actor; the bytes sent there and back."""
        group, received = self._group, 0
        for column in ("old_log_probs", "ref_log_prob"):
            answered = group.log_probs(batch, column, by_reference)
            values = resolve(answered)
            received += sent_bytes(values) + (sent_bytes(answered) if by_reference else 0)
            scalars.union(values)
            batch.union(answered)
        mask = scalars.batch.ragged("response_mask")
        for column in ("advantages", "loss_weight"):
            batch.batch[column] = mask.like(mask.values.float())
        group.update(batch)
        return group.sent + received


def sent_bytes(value: Any) -> int:
    """What Ray sends for a value."""
    buffers: list[pickle.PickleBuffer] = []
    stream = ray.cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(stream) + sum(buffer.raw().nbytes for buffer in buffers)


def measured(size: Size, by_reference: bool) -> dict[str, float]:
    """One step in processes of its own."""
    runner = ray.remote(Runner).options(num_cpus=0).remote(size)
    controller = ray.remote(Controller).options(num_cpus=0).remote(size)
    step: dict[str, float] = ray.get(controller.step.remote(runner, by_reference))
    ray.get(controller.close.remote())
    ray.kill(controller)
    ray.kill(runner)
    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trajectories", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--image-bytes", type=int, default=300_000)
    parser.add_argument("--ranks", type=int, default=2)
    size = Size(**vars(parser.parse_args()))
    connect(RayInit(num_cpus=2 * size.ranks, include_dashboard=False, object_store_memory=STORE_BYTES))
    try:
        ours, other = measured(size, by_reference=True), measured(size, by_reference=False)
    finally:
        disconnect()
    print(f"by reference {ours['seconds']:.2f} s, by value {other['seconds']:.2f} s")  # noqa: T201
    report(
        [
            Case.of_costs("bytes of three calls", ours["calls"], other["calls"], "bytes", FEWEST_TIMES_LESS),
            Case.of_costs("bytes of the step", ours["step"], other["step"], "bytes", 1.0),
            Case.of_costs("peak memory of the controller", ours["memory"], other["memory"], "bytes", 1.0),
        ]
    )


if __name__ == "__main__":
    main()
