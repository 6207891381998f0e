"""Bytes that a step sends when ids and images pass the controller by, against sending the batch by value; JSON at last.

Usage: python benchmarks/data_plane.py [--trajectories 1024] [--tokens 8000] [--image-bytes 300000] [--ranks 2]

A runner's process makes trajectories, a controller's process has two or more ranks compute old log-probs and reference
log-probs and update the actor in four mini-batches. By reference all of it but the models is what `agentverl train`
runs: the runner's Keeper and Shipping, the batch, PolicyUpdate. By value, the runner sends the batch and each call
takes all of its rows with all of their columns. Ranks read every id and every image byte and answer with columns of
the right sizes. Counted is what processes give Ray to keep or to send, arguments and results, pickled as Ray pickles.

- `bytes of the step`: from the runner to the last mini-batch; by value, columns are sent as plain arrays;
- `bytes of three calls`: the same without the hand-over from the runner;
- `bytes of the step, packed alike`: by value, columns are packed as references are;
- `peak memory of the controller`: its resident bytes at most, beyond those before the step.

By reference, the program also fails where the controller asks the store for a column.
"""

import argparse
import pickle
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import ray
import torch
from comparison import Case, report

from agentverl.protocol.column_store import Stored, resolve
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.encoding import to_numpy
from agentverl.protocol.ragged import Ragged
from agentverl.protocol.ray_column_store import RayColumnStore
from agentverl.rollout.batching import assemble
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.shipping import Shipping
from agentverl.settings.compose import compose_words
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.ray_cluster import RayInit, connect, disconnect
from agentverl.single_controller.ray_group import RayWorkerGroup
from agentverl.single_controller.ray_pools import RayResourcePool
from agentverl.single_controller.worker import Worker, WorkerClass
from agentverl.trainer.memory import MemoryMeter
from agentverl.trainer.policy_update import PolicyUpdate
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.trajectory import AgentLoopOutput, Turn
from agentverl.workers.training_step import TRAINING_STEP

FEWEST_TIMES_LESS = 5.0
SAMPLES, MINI_BATCHES, PROMPT_TOKENS = 4, 4, 16
STORE_BYTES = 6 * 2**30


@dataclass(frozen=True, slots=True)
class Size:
    """Of the batch."""

    trajectories: int
    tokens: int
    image_bytes: int
    ranks: int


class CountingStore(RayColumnStore):
    """Counts what it is given; in the controller's process it gives nothing back."""

    refuses = False

    def __init__(self) -> None:
        self.put_bytes = 0

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        self.put_bytes += sent_bytes(list(columns))
        return super().put(columns)

    def get(self, keys: Sequence[Hashable]) -> list[Stored]:
        if self.refuses:
            raise RuntimeError("the controller fetches a column of ids or images")
        return super().get(keys)


class Runner:
    """A fake of the runner of episodes: random ids and images, kept and sent as a real one does."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._random = np.random.default_rng(0)
        self._store = CountingStore()
        self._keeper, self._shipping = Keeper(), Shipping(self._store)

    def play(self, number: int) -> EpisodeResult:
        """A trajectory by reference."""
        result = self._trajectory(number)
        self._keeper.keep(result)
        return self._shipping.ready([result]).opened()[0]

    def put_bytes(self) -> int:
        """Bytes that were put into the store."""
        return self._store.put_bytes

    def batch(self) -> DataProto:
        """All trajectories by value."""
        results = [self._trajectory(number) for number in range(self._size.trajectories)]
        for result in results:
            self._keeper.keep(result)
        return resolve(assemble([Group(uid="", row={}, results=results, failures=[])]))

    def _trajectory(self, number: int) -> EpisodeResult:
        size, random = self._size, self._random
        uid, sample = divmod(number, SAMPLES)
        name = f"0-{uid}/{sample}"
        output = AgentLoopOutput(
            prompt_ids=random.integers(0, 32000, PROMPT_TOKENS).tolist(),
            response_ids=random.integers(0, 32000, size.tokens).tolist(),
            response_mask=[1] * size.tokens,
            response_logprobs=(-random.random(size.tokens, np.float32)).tolist(),
            multi_modal_data={"images": [random.integers(0, 256, size.image_bytes, np.uint8)]},
            turns=[Turn(role="assistant", start=0, stop=size.tokens, temperature=1.0)],
            trajectory_id=name,
        )
        episode = Episode(uid=f"0-{uid}", sample=sample, row={}, sampling_params={})
        return EpisodeResult(episode=episode, outputs=[output], score=float(random.random()))


class Ranks(Worker):
    """A fake of the policy's workers: reads all ids and images, and answers with columns of the right size."""

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        responses = data.batch.ragged("responses")
        values = np.random.default_rng(_read(data)).random(len(responses.values), np.float32)
        return DataProto({"log_probs": responses.like(torch.from_numpy(-values))})

    @register(Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        return self.compute_log_prob(data)

    @register(TRAINING_STEP)
    def update_actor(self, data: DataProto) -> dict[str, float]:
        return {"actor/read": float(_read(data))}


def _read(data: DataProto) -> int:
    images = [image for entry in data.non_tensor_batch["multi_modal_data"] for image in entry["images"]]
    pixels = sum(int(image.sum(dtype=np.int64)) for image in images)
    return pixels + int(data.batch.ragged("responses").values.sum()) + int(data.batch.ragged("prompts").values.sum())


@dataclass(slots=True)
class CountedRanks:
    """The group of ranks, with what is sent to it and back."""

    group: RayWorkerGroup
    by_reference: bool
    packed: int = 0
    plain: int = field(default=0)

    def compute_log_prob(self, data: DataProto) -> DataProto:
        return self._answered(self.group.compute_log_prob(self._sent(data)))

    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        return self._answered(self.group.compute_ref_log_prob(self._sent(data)))

    def update_actor(self, data: DataProto) -> Mapping[str, float]:
        metrics: Mapping[str, float] = self.group.update_actor(self._sent(data))
        return metrics

    def load_training_state(self) -> None: ...

    def offload_training_state(self) -> None: ...

    def _sent(self, data: DataProto) -> DataProto:
        for share in data.chunk(self.group.world_size):
            self._count(share)
        return data

    def _answered(self, data: DataProto) -> DataProto:
        self._count(data)
        return data

    def _count(self, data: DataProto) -> None:
        self.packed += sent_bytes(data)
        if not self.by_reference:
            self.plain += plain_bytes(data)


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one step."""

    hand_over: int
    calls: int
    plain_hand_over: int
    plain_calls: int
    memory_bytes: int
    seconds: float


class Controller:
    """The steps of a trainer."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._pool = RayResourcePool([size.ranks])
        self._group = RayWorkerGroup(self._pool, WorkerClass(Ranks))

    def step(self, runner: Any, by_reference: bool) -> Measured:
        """One step; the bytes that were sent for it and the memory that this process took."""
        resident = psutil.Process().memory_info().rss
        ranks = CountedRanks(self._group, by_reference)
        with MemoryMeter(0.02) as memory:
            started = time.perf_counter()
            step = self._by_reference if by_reference else self._by_value
            hand_over, plain_hand_over = step(runner, ranks)
            seconds = time.perf_counter() - started
        peak = memory.peak_bytes - resident
        return Measured(hand_over, ranks.packed, plain_hand_over, ranks.plain, peak, seconds)

    def close(self) -> None:
        """End the ranks."""
        self._group.close()
        self._pool.release()

    def _by_reference(self, runner: Any, ranks: CountedRanks) -> tuple[int, int]:
        CountingStore.refuses = True
        prompts = self._size.trajectories // SAMPLES
        settings = compose_words(
            (
                f"data.train_batch_size={prompts}",
                f"actor.ppo_mini_batch_size={prompts // MINI_BATCHES}",
                f"rollout.n={SAMPLES}",
                "actor.use_kl_loss=true",
            )
        )
        results: list[EpisodeResult] = ray.get([runner.play.remote(one) for one in range(self._size.trajectories)])
        handed_over = sum(sent_bytes(result) for result in results) + ray.get(runner.put_bytes.remote())
        groups = [
            Group(uid=results[start].episode.uid, row={}, results=results[start : start + SAMPLES], failures=[])
            for start in range(0, len(results), SAMPLES)
        ]
        PolicyUpdate(settings, ranks).learn(assemble(groups, meta_info={"global_steps": 1}), 1, Stopwatch())
        return handed_over, 0

    def _by_value(self, runner: Any, ranks: CountedRanks) -> tuple[int, int]:
        batch: DataProto = ray.get(runner.batch.remote())
        handed_over = sent_bytes(batch), plain_bytes(batch)
        batch.batch["old_log_probs"] = ranks.compute_log_prob(batch).batch["log_probs"]
        batch.batch["ref_log_prob"] = ranks.compute_ref_log_prob(batch).batch["log_probs"]
        mask = batch.batch.ragged("response_mask")
        for column in ("token_level_rewards", "advantages", "returns", "loss_weight"):
            batch.batch[column] = mask.like(mask.values.float())
        for part in batch.chunk(MINI_BATCHES):
            ranks.update_actor(part)
        return handed_over


def sent_bytes(value: Any) -> int:
    """What Ray sends for a value."""
    buffers: list[pickle.PickleBuffer] = []
    stream = ray.cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return len(stream) + sum(buffer.raw().nbytes for buffer in buffers)


def plain_bytes(data: DataProto) -> int:
    """What Ray would send for a batch whose columns are plain arrays."""
    columns = {
        name: (to_numpy(column.values), to_numpy(column.offsets)) if isinstance(column, Ragged) else to_numpy(column)
        for name, column in data.batch.items()
    }
    return sent_bytes((columns, data.non_tensor_batch, data.meta_info))


def measured(size: Size, by_reference: bool) -> Measured:
    """One step in processes of its own."""
    runner = ray.remote(Runner).options(num_cpus=0).remote(size)
    controller = ray.remote(Controller).options(num_cpus=0).remote(size)
    step: Measured = ray.get(controller.step.remote(runner, by_reference))
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
    print(f"by reference {ours.seconds:.2f} s, by value {other.seconds:.2f} s")  # noqa: T201
    step, packed = ours.hand_over + ours.calls, other.hand_over + other.calls
    plain = other.plain_hand_over + other.plain_calls
    report(
        [
            Case.of_costs("bytes of the step", step, plain, "bytes", FEWEST_TIMES_LESS),
            Case.of_costs("bytes of three calls", ours.calls, other.plain_calls, "bytes", FEWEST_TIMES_LESS),
            Case.of_costs("bytes of the step, packed alike", step, packed, "bytes", 1.0),
            Case.of_costs("peak memory of the controller", ours.memory_bytes, other.memory_bytes, "bytes", 1.0),
        ]
    )


if __name__ == "__main__":
    main()
