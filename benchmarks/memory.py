"""Peak memory of each phase of a step over the sum of what must be resident in it.

    python benchmarks/memory.py                     # the model of 3.2 M parameters
    python benchmarks/memory.py --model MODEL_FOLDER

What must be resident: in `gen` the weights and the optimiser's moments (a CPU has nowhere to offload them to), the
served weights and the KV caches as they are at its end; in `update_actor` the weights, their gradients and the moments;
in `update_weights` the weights, the moments and the served weights. All is float32. Activations are not counted: how
many there are is chosen by the tokens of a forward pass, here those of one sequence.

Measured is the resident memory of the process, of which the kernel tells the peak within a phase (Linux), without what
it held after a step of another model, which loads all code, and before the model was loaded. Freed blocks go back to
the system at once (MALLOC_MMAP_THRESHOLD_), so that they do not count.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from comparison import Case, report
from tiny_model import build

from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker, PolicyRun

REQUIRED = {"gen": 1 / 1.5, "update_actor": 1 / 1.5, "update_weights": 1 / 1.25}
"""A third of the peak may be no state: the activations of one sequence, and the old keys beside the new ones while the
pool grows (half of the pool at most). A hand-over computes nothing; a second set of served weights, which a server that
does not sleep needs for a moment, would be a quarter more."""
_RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1"}


def resident(field: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` the peak since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def settings(folder: Path, arguments: argparse.Namespace) -> ActorRolloutRefSettings:
    return ActorRolloutRefSettings.model_validate(
        {
            "model": {"path": str(folder)},
            "actor": {
                "fsdp_config": {"dtype": "float32"},
                "ppo_max_token_len_per_gpu": arguments.tokens,
            },
            "rollout": {"max_model_len": 512, "max_num_batched_tokens": arguments.tokens},
        }
    )


class Step:
    """One step of a policy in its phases, each with its peak and with what must be resident in it."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.group = start_workers(
            "local", WorkerClass(ActorRolloutRefWorker, (settings(folder, arguments), PolicyRun(device="cpu")))
        )
        self.version = 0
        self.kv_bytes = 0
        self.data: DataProto | None = None

    async def start(self) -> None:
        self.group.init_model()
        await self.group.start_replica()

    @property
    def weight_bytes(self) -> int:
        engine = self.group.workers[0].actor  # type: ignore[attr-defined]
        return sum(tensor.nbytes for _, tensor in engine.get_per_tensor_param())

    async def update_weights(self) -> None:
        await self.group.update_weights(self.version)
        self.version += 1

    async def gen(self) -> None:
        count = self.arguments.sequences
        prompts = torch.randint(5, 200, (count, 32), generator=torch.Generator().manual_seed(self.version)).tolist()
        how: dict[str, Any] = {"max_tokens": 224, "ignore_eos": True}
        replica = self.group.replica()
        for number in range(count):
            await replica.open(str(number))
        answers = await asyncio.gather(
            *(
                replica.generate(str(number), prompt_ids=prompt, sampling_params={**how, "seed": number})
                for number, prompt in enumerate(prompts)
            )
        )
        self.kv_bytes = (await replica.health())["kv_memory_bytes"]
        responses = Ragged.from_list([answer.token_ids for answer in answers], torch.long)
        self.data = DataProto(
            Columns(
                {
                    "prompts": Ragged.from_list(prompts, torch.long),
                    "responses": responses,
                    "response_mask": responses.like(torch.ones_like(responses.values)),
                    "temperature": responses.like(torch.ones(len(responses.values))),
                    "rollout_log_probs": Ragged.from_list([one.log_probs or [] for one in answers], torch.float32),
                    "advantages": responses.like(torch.ones(len(responses.values))),
                }
            )
        )
        for number in range(count):
            await replica.close(str(number))

    async def update_actor(self) -> None:
        assert self.data is not None
        self.group.load_training_state()
        self.group.update_actor(self.data)
        self.group.offload_training_state()

    async def peaks(self) -> dict[str, int]:
        """Of one step, bytes."""
        found = {"update_weights": await self._peak_of(self.update_weights), "gen": await self._peak_of(self.gen)}
        await self.group.rest_replica()
        return found | {"update_actor": await self._peak_of(self.update_actor)}

    async def _peak_of(self, phase: Callable[[], Awaitable[None]]) -> int:
        forget_peak()
        await phase()
        return resident("VmHWM")


async def measure(folder: Path, arguments: argparse.Namespace) -> None:
    warm = Step(build(folder / "warm"), argparse.Namespace(sequences=2, tokens=512))
    await warm.start()
    await warm.peaks()
    await warm.group.stop_replica()
    del warm
    before = resident("VmRSS")
    step = Step(Path(arguments.model) if arguments.model else build(folder / "model"), arguments)
    await step.start()
    await step.peaks()  # the moments are made in the first step
    peaks = await step.peaks()
    weights = step.weight_bytes
    needed = {"gen": 4 * weights + step.kv_bytes, "update_actor": 4 * weights, "update_weights": 4 * weights}
    await step.group.stop_replica()
    cases = []
    for phase, needed_bytes in needed.items():
        peak = (peaks[phase] - before) / 2**20
        cases.append(Case.of_costs(f"{phase}: peak, needed", peak, needed_bytes / 2**20, "MiB", REQUIRED[phase]))
    report(cases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; default: the benchmarks' own")
    parser.add_argument("--sequences", type=int, default=8, help="of 256 tokens each")
    parser.add_argument("--tokens", type=int, default=256, help="of a forward pass")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in _RETURNED_AT_ONCE.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_RETURNED_AT_ONCE})
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), arguments))


if __name__ == "__main__":
    main()
