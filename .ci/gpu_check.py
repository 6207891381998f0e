"""What CPUs cannot show, on one GPU, in at most eight minutes: `make gpu-check`.

Each check is a function that takes the device, so that tests run the same code on a CPU. The last line is a JSON
object; the line before it is a row for docs/hardware.md. Exit code 0: all passed; 1: one failed; 2: there is no GPU, so
nothing was checked, which must not look like a pass.
"""

import asyncio
import gc
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentverl import plugins
from agentverl.checkpoint_engine.seats import Seat
from agentverl.data.model_folder import resolve_model_path
from agentverl.engines.base import ModelOutput
from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.settings import EngineSettings, OptimizerSettings, ShardingSettings
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.replica import RolloutReplica
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.ports import free_port
from agentverl.single_controller.worker import WorkerClass
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker, PolicyRun
from agentverl.workers.weight_update import receive_weights, send_weights

MODEL = "nano"
PROMPT = [5, 17, 9, 40]
GREEDY = {"temperature": 0.0, "max_tokens": 32, "ignore_eos": True}
LOG_PROB_TOLERANCE = 1e-3
"""Between server and engine in float32; on a GPU their matrix products differ in shape and so in rounding."""
ROUNDING = 0.05
"""Relative, of a gradient's norm in bfloat16 against float32."""
QUICKSTART_SECONDS = 270

Numbers = dict[str, float]


def engine_of(device: str, dtype: str = "float32", *, sharded: bool = False) -> FSDPEngine:
    """The nano model, ready to train; `sharded` by FSDP2, whose offload policy is what one rank needs it for."""
    engine = FSDPEngine(
        EngineSettings(
            model=resolve_model_path(MODEL).path,
            device=device,
            dtype=dtype,
            optimizer=OptimizerSettings(lr=1e-3),
            sharding=ShardingSettings(offload_policy=sharded),
        )
    )
    engine.initialize()
    return engine


def batch_of(prompts: list[list[int]], responses: list[list[int]]) -> DataProto:
    answers = Ragged.from_list(responses, torch.long)
    columns = {
        "prompts": Ragged.from_list(prompts, torch.long),
        "responses": answers,
        "response_mask": answers.like(torch.ones_like(answers.values)),
        "temperature": answers.like(torch.ones(len(answers.values))),
        "rollout_log_probs": answers.like(torch.zeros(len(answers.values))),
        "advantages": answers.like(torch.ones(len(answers.values))),
    }
    return DataProto(Columns(columns))


def lessons() -> DataProto:
    random = torch.Generator().manual_seed(0)
    drawn = torch.randint(5, 90, (8, 64), generator=random).tolist()
    return batch_of([row[:16] for row in drawn], [row[16:] for row in drawn])


def likelihood(output: ModelOutput, micro_batch: DataProto) -> tuple[torch.Tensor, Mapping[str, float]]:
    return -output.log_probs.sum() / (8 * 48), {}


def three_steps(engine: FSDPEngine) -> tuple[float, float, float]:
    """The first gradient's norm, and the mean log-probability before and after."""
    data = lessons()

    def mean() -> float:
        return float(engine.infer_batch(data).batch.ragged("log_probs").values.mean())

    before = mean()
    norms = [engine.train_batch(data, likelihood)["grad_norm"] for _ in range(3)]
    return norms[0], before, mean()


def bfloat16_steps(device: str) -> Numbers:
    """A bfloat16 step learns what a float32 step on the CPU learns, plain and with FSDP2."""
    expected, _, _ = three_steps(engine_of("cpu"))
    numbers = {"expected_grad_norm": expected}
    for name, sharded in (("plain", False), ("fsdp2", True)):
        try:
            norm, before, after = three_steps(engine_of(device, "bfloat16", sharded=sharded))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        assert abs(norm / expected - 1) < ROUNDING, f"{name}: gradient norm {norm}, expected {expected}"
        assert after > before, f"{name}: log-probabilities went from {before} to {after}"
        numbers |= {f"{name}_grad_norm": norm, f"{name}_gain": after - before}
    return numbers


def held_bytes(device: str) -> int:
    """Bytes in tensors on the device."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    storages = [one.untyped_storage() for one in tensors if one.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


async def answer(replica: RolloutReplica) -> tuple[list[int], list[float]]:
    output = await replica.generate("check", prompt_ids=PROMPT, sampling_params=GREEDY)
    assert output.log_probs is not None
    return output.token_ids, output.log_probs


def require_equal(engine: FSDPEngine, ids: list[int], log_probs: list[float]) -> float:
    """The largest difference between the server's log-probabilities and the engine's."""
    computed = engine.infer_batch(batch_of([PROMPT], [ids])).batch.ragged("log_probs").values
    difference = float((computed - torch.tensor(log_probs)).abs().max())
    assert difference < LOG_PROB_TOLERANCE, f"log-probabilities of server and engine differ by {difference}"
    return difference


def sleep_frees_memory(device: str) -> Numbers:
    """The dance of the hybrid engine: what the server and then the training state leave behind is gone."""
    return asyncio.run(_sleep_frees_memory(device))


async def _sleep_frees_memory(device: str) -> Numbers:
    offload = {"param_offload": True, "optimizer_offload": True, "dtype": "float32"}
    config = {"model": {"path": MODEL}, "actor": {"fsdp_config": offload}, "rollout": {"max_model_len": 512}}
    section = ActorRolloutRefSettings.model_validate(config)
    group = start_workers("local", WorkerClass(ActorRolloutRefWorker, (section, PolicyRun(device=device))))
    group.init_model()
    await group.start_replica()
    try:
        await group.update_weights(0)
        replica, engine = group.replica(), group.workers[0].actor  # type: ignore[attr-defined]
        ids, _ = await answer(replica)
        weights = sum(tensor.nbytes for _, tensor in engine.get_per_tensor_param())
        resident = weights + (await replica.health())["kv_memory_bytes"]
        awake = held_bytes(device)
        await group.rest_replica()
        asleep = held_bytes(device)
        assert awake - asleep > 0.95 * resident, f"sleep freed {awake - asleep} bytes of {resident}"
        group.load_training_state()
        group.update_actor(batch_of([PROMPT], [ids]))
        training = held_bytes(device)
        group.offload_training_state()
        offloaded = held_bytes(device)
        if device == "cuda":
            assert offloaded < training - 2.5 * weights, f"offloading left {offloaded} of {training} bytes"
        await group.update_weights(1)
        difference = require_equal_after_update(group, await answer(replica))
    finally:
        await group.stop_replica()
    return {"resident": resident, "freed": awake - asleep, "offloaded": training - offloaded, "difference": difference}


def require_equal_after_update(group: Any, answered: tuple[list[int], list[float]]) -> float:
    with group.workers[0].residence.on_device():
        return require_equal(group.workers[0].actor, *answered)


def weights_arrive(device: str, backend: str = "cuda_ipc") -> Numbers:
    """A server in another process answers with the weights that this one has learnt."""
    address = f"127.0.0.1:{free_port(None)}"
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=serve, args=(device, backend, address, theirs), daemon=True)
    server.start()
    theirs.close()
    try:
        engine, sender = engine_of(device), plugins.find("checkpoint_engines", backend)()
        engine.train_batch(lessons(), likelihood)
        seconds = []
        for version in range(3):
            started = time.perf_counter()
            seat = Seat(size=2, address=address, timeout_seconds=90.0)
            asyncio.run(send_weights(sender, engine.get_per_tensor_param(), seat, version))
            seconds.append(time.perf_counter() - started)
        difference = require_equal(engine, *mine.recv())
    finally:
        server.join(30)
        server.kill()
    return {"difference": difference, "seconds": min(seconds)}


def serve(device: str, backend: str, address: str, pipe: Any) -> None:
    """The server's process: three updates, then one answer."""

    async def run() -> None:
        replica = HFReplica(
            resolve_model_path(MODEL).path, settings=HFSettings(device=device, max_model_len=512, load_weights=False)
        )
        await replica.init_standalone()
        receiver = plugins.find("checkpoint_engines", backend)()
        try:
            for version in range(3):
                seat = Seat(rank=1, size=2, address=address, timeout_seconds=90.0)
                await receive_weights(receiver, replica, seat, version)
            pipe.send(await answer(replica))
        finally:
            await replica.shutdown()

    asyncio.run(run())


def quickstart(device: str, *more: str, steps: int = 16) -> Numbers:
    """`agentverl train` learns on the device."""
    words = [f"trainer.device={device}", f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
    command = [str(Path(sys.executable).with_name("agentverl")), "train", *words, "trainer.logger=[file]", *more]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, check=True, timeout=QUICKSTART_SECONDS, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(folder) / "outputs" / "quickstart" / "summary.json").read_text())
    numbers = {name: value for name, value in summary.items() if isinstance(value, int | float)}
    assert numbers["validation_after"] > numbers["validation_before"], f"nothing was learnt: {summary}"
    return numbers


CHECKS: tuple[Callable[[str], Numbers], ...] = (bfloat16_steps, sleep_frees_memory, weights_arrive, quickstart)


def run_check(check: Callable[[str], Numbers], device: str) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        found: dict[str, Any] = {"passed": True, **check(device)}
    except Exception as error:  # the other checks still say something
        found = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    return {"name": check.__name__, "check_seconds": round(time.perf_counter() - started, 1), **found}


def main() -> int:
    if not torch.cuda.is_available():
        print("gpu-check: torch sees no GPU here, so nothing was checked")  # noqa: T201
        return 2
    results = []
    for check in CHECKS:
        results.append(run_check(check, "cuda"))
        print(results[-1], flush=True)  # noqa: T201
    name, passed = torch.cuda.get_device_name(), all(result["passed"] for result in results)
    seconds = sum(result["check_seconds"] for result in results)
    verdict = "passed" if passed else "failed: " + ", ".join(one["name"] for one in results if not one["passed"])
    print(f"| {date.today()} | {name} | torch {torch.__version__} | `make gpu-check` | {verdict}, {seconds:.0f} s |")  # noqa: T201
    print(json.dumps({"device": name, "torch": torch.__version__, "passed": passed, "checks": results}))  # noqa: T201
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
