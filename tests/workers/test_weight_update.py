"""A server in another process samples from the weights that the training engine holds."""

import asyncio
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentverl import plugins
from agentverl.checkpoint_engine.seats import Seat
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError
from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.settings import EngineSettings, OptimizerSettings
from agentverl.errors import BadInputError
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.workers.weight_update import receive_weights, send_weights
from tests.checkpoint_engine.test_streamed import free_address
from tests.engines.ranks import on_ranks
from tests.engines.test_optimization import nll
from tests.engines.tiny_models import CONFIGS, batch_of

PROMPT = [1, 2, 3]


def seat(rank: int, address: str) -> Seat:
    return Seat(rank=rank, size=2, address=address, bucket_bytes=5000, timeout_seconds=60.0)


def trained_engine(shared: bool) -> FSDPEngine:
    settings = EngineSettings(model=CONFIGS["qwen2"], optimizer=OptimizerSettings(lr=1e-2), share_weights=shared)
    engine = FSDPEngine(settings)
    engine.initialize()
    return engine


def engine_log_probs(engine: FSDPEngine, answer: list[int]) -> torch.Tensor:
    columns = {
        "prompts": Ragged.from_list([torch.tensor(PROMPT)]),
        "responses": Ragged.from_list([torch.tensor(answer)]),
    }
    return engine.infer_batch(DataProto(Columns(columns))).batch.ragged("log_probs").values


async def answers(replica: HFReplica) -> tuple[list[int], list[float]]:
    params = {"max_tokens": 8, "ignore_eos": True, "seed": 0}
    output = await replica.generate("one", prompt_ids=PROMPT, sampling_params=params)
    assert output.weight_versions == [(8, replica.weight_version)]
    return output.token_ids, output.log_probs or []


async def serve(backend: str, address: str, updates: int) -> list[Any]:
    replica = HFReplica(CONFIGS["qwen2"], settings=HFSettings(load_weights=False))
    await replica.init_standalone()
    engine, said = plugins.find("checkpoint_engines", backend)(), []
    try:
        for version in range(updates):
            await receive_weights(engine, replica, seat(1, address), version)
            said.append(await answers(replica))
    finally:
        await replica.shutdown()
    return said


def train(backend: str, address: str, updates: int, shared: bool) -> list[Any]:
    os.environ["WORLD_SIZE"] = "1"  # the engine has one rank of its own; the server is no part of it
    engine, transfer, kept = trained_engine(shared), plugins.find("checkpoint_engines", backend)(), []
    for version in range(updates):
        engine.train_batch(batch_of([(3, 9), (7, 2)]), nll)
        asyncio.run(send_weights(transfer, engine.get_per_tensor_param(), seat(0, address), version))
        kept.append({name: tensor.clone() for name, tensor in engine.get_per_tensor_param()})
    return kept


def one_end(backend: str, address: str, updates: int, shared: bool) -> list[Any]:
    size = os.environ["WORLD_SIZE"]
    try:
        if os.environ["RANK"] == "0":
            return train(backend, address, updates, shared)
        return asyncio.run(serve(backend, address, updates))
    finally:
        os.environ["WORLD_SIZE"] = size


@pytest.mark.parametrize(("backend", "shared"), [("shared_memory", True), ("shared_memory", False), ("gloo", False)])
def test_a_server_elsewhere_samples_from_the_trained_weights(backend: str, shared: bool) -> None:
    kept, said = on_ranks(2, one_end, backend, free_address(), 2, shared)
    engine = trained_engine(False)
    for weights, (token_ids, log_probs) in zip(kept, said, strict=True):
        for name, master in engine.weights.masters.items():
            master.data.copy_(weights[name])
        torch.testing.assert_close(torch.tensor(log_probs), engine_log_probs(engine, token_ids), rtol=0, atol=1e-5)


def test_weights_that_do_not_fit_into_shared_memory_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    engine = trained_engine(True)
    assert not any(tensor.untyped_storage().is_shared() for _, tensor in engine.get_per_tensor_param())
    assert "--shm-size" in caplog.text


async def refuse(address: str) -> tuple[str, int]:
    replica = HFReplica(CONFIGS["llama"])
    await replica.init_standalone()
    try:
        with pytest.raises(BadInputError, match="keeps the old ones") as raised:
            await receive_weights(plugins.find("checkpoint_engines", "shared_memory")(), replica, seat(1, address), 7)
        return str(raised.value), replica.weight_version
    finally:
        await replica.shutdown()


def unfitting_end(address: str) -> Any:
    if os.environ["RANK"] == "1":
        return asyncio.run(refuse(address))
    os.environ["WORLD_SIZE"] = "1"
    try:
        weights = trained_engine(False).get_per_tensor_param()
    finally:
        os.environ["WORLD_SIZE"] = "2"
    transfer = plugins.find("checkpoint_engines", "shared_memory")()
    with pytest.raises(WeightTransferError, match="did not arrive completely at receivers 1"):
        asyncio.run(send_weights(transfer, weights, seat(0, address), 7))
    return None


def test_a_server_that_cannot_use_the_set_serves_its_old_one_and_says_so() -> None:
    _, (_, version) = on_ranks(2, unfitting_end, free_address())
    assert version == 0


def sharded_end(address: str) -> Any:
    """Two ranks train, of which the first sends to a server in the third process."""
    rank = int(os.environ["RANK"])
    if rank == 2:
        return asyncio.run(serve("shared_memory", address, 1))
    os.environ["WORLD_SIZE"] = "2"
    try:
        engine = trained_engine(False)
    finally:
        os.environ["WORLD_SIZE"] = "3"
    engine.train_batch(batch_of([(3, 9), (7, 2)]).chunk(2)[rank], nll)
    transfer = plugins.find("checkpoint_engines", "shared_memory")()
    mine = seat(0, address) if rank == 0 else None
    asyncio.run(send_weights(transfer, engine.get_per_tensor_param(), mine, 0))
    return {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()}


def test_all_ranks_iterate_one_stream_of_which_the_first_sends() -> None:
    world = partial(on_ranks, 3)
    weights, others, ((token_ids, log_probs),) = world(sharded_end, free_address())
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    engine = trained_engine(False)
    for name, master in engine.weights.masters.items():
        master.data.copy_(weights[name])
    torch.testing.assert_close(torch.tensor(log_probs), engine_log_probs(engine, token_ids), rtol=0, atol=1e-5)
