"""Time to bring new weights to an hf server in another process, against a plain copy of the same bytes.

    python benchmarks/weights.py                 # 0.5 GB through shared memory
    python benchmarks/weights.py --backend gloo

The sender holds the weights in its memory, the server puts them in place at a token boundary; an update ends when the
sender knows that they are. The plain copy goes between two sets of tensors of the sender that were written before. The
sides take turns; times are medians.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from comparison import Case, report
from transformers import AutoModelForCausalLM, Qwen2Config

from agentverl import freed_memory, plugins
from agentverl.checkpoint_engine.seats import Seat
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.single_controller.ports import free_port
from agentverl.workers.weight_update import receive_weights, send_weights

REQUIRED = 1 / 1.5
_PARAMETERS_OF_A_LAYER = 12_850_000


def config_of(gigabytes: float) -> Qwen2Config:
    """A model with about as many bytes of float32 weights."""
    vocabulary = 32_000 if gigabytes > 0.2 else 512
    layers = max(1, round((gigabytes * 1e9 / 4 - vocabulary * 1024) / _PARAMETERS_OF_A_LAYER))
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        tie_word_embeddings=True,
    )


def seat(arguments: argparse.Namespace, rank: int) -> Seat:
    return Seat(rank=rank, size=2, address=arguments.address, timeout_seconds=120.0)


async def serve(arguments: argparse.Namespace) -> None:
    """The server's process: an update for each line of standard input."""
    replica = HFReplica(config_of(arguments.gigabytes), settings=HFSettings(load_weights=False))
    await replica.init_standalone()
    engine = plugins.find("checkpoint_engines", arguments.backend)()
    try:
        for version, _ in enumerate(sys.stdin):
            await receive_weights(engine, replica, seat(arguments, 1), version)
            assert replica.weight_version == version
    finally:
        await replica.shutdown()


def plain_copy(weights: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> float:
    started = time.perf_counter()
    for name, tensor in weights.items():
        target[name].copy_(tensor)
    return time.perf_counter() - started


async def measure(arguments: argparse.Namespace, server: Any) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(arguments.gigabytes))
    weights = {name: torch.rand(parameter.shape) for name, parameter in model.named_parameters()}
    if not arguments.private:
        for tensor in weights.values():
            tensor.share_memory_()
    target = {name: torch.rand_like(tensor) for name, tensor in weights.items()}
    engine = plugins.find("checkpoint_engines", arguments.backend)()
    copies, updates = [], []
    for version in range(arguments.warm_up + arguments.turns):
        copies.append(plain_copy(weights, target))
        server.stdin.write("update\n")
        server.stdin.flush()
        started = time.perf_counter()
        await send_weights(engine, weights.items(), seat(arguments, 0), version)
        updates.append(time.perf_counter() - started)
    ours, copy = (statistics.median(times[arguments.warm_up :]) for times in (updates, copies))
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    report([Case.of_costs(f"{arguments.backend}: {size / 1e9:.2f} GB to an hf server", ours, copy, "s", REQUIRED)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="shared_memory")
    parser.add_argument("--gigabytes", type=float, default=0.5)
    parser.add_argument("--private", action="store_true", help="weights outside shared memory, as gathered ones")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    freed_memory.keep()
    if arguments.address:
        return asyncio.run(serve(arguments))
    arguments.address = f"127.0.0.1:{free_port(None)}"
    command = [sys.executable, str(Path(__file__)), "--address", arguments.address, "--backend", arguments.backend]
    server = subprocess.Popen([*command, "--gigabytes", str(arguments.gigabytes)], stdin=subprocess.PIPE, text=True)
    try:
        asyncio.run(measure(arguments, server))
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(timeout=60)
    return None


if __name__ == "__main__":
    main()
