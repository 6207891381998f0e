"""What goes wrong is told to those who wait, and nothing hangs."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, MambaConfig, T5Config

from agentverl.errors import BadInputError, InfrastructureError, ModelFolderError
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.replica_spec import ReplicaSpec
from tests.rollout.hf.conftest import Serve
from tests.rollout.hf.tiny_models import CONFIGS, Reference, generate

HOW: dict[str, Any] = {"ignore_eos": True, "max_tokens": 5}


class FailingTokenizer:
    """Decodes nothing; fails with an error of a given type."""

    eos_token_id = 1

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def decode(self, token_ids: Any, **_: Any) -> str:
        raise self._error


async def test_an_error_in_a_step_fails_its_requests_and_the_server_lives(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, FailingTokenizer(RuntimeError("no such piece")))
    await replica.open("b")
    outputs = await asyncio.gather(
        generate(replica, "a", [5], stop="x", **HOW),
        generate(replica, "b", [6], **HOW),
        return_exceptions=True,
    )
    assert isinstance(outputs[0], InfrastructureError)
    assert outputs[0].boundary == "model"
    assert "RuntimeError: no such piece" in str(outputs[0])
    output = await generate(replica, "b", [6], seed=0, **HOW)
    assert output.log_probs == pytest.approx(qwen2.log_probs([6], output.token_ids), abs=1e-5)
    assert (await replica.health())["state"] == "serving"


async def test_a_dead_server_fails_all_requests_at_once(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, FailingTokenizer(SystemExit("pulled the plug")), max_num_seqs=1)
    tasks = [
        asyncio.create_task(generate(replica, "a", [5], stop="x", **HOW)),
        asyncio.create_task(generate(replica, "b", [5], **HOW)),
    ]
    outputs = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    for output in outputs:
        assert isinstance(output, InfrastructureError)
        assert "pulled the plug" in str(output)
    for call in (replica.health(), replica.open("c"), replica.abort("a"), generate(replica, "c", [5], **HOW)):
        with pytest.raises(InfrastructureError, match="pulled the plug"):
            await call


async def test_shutdown_fails_what_is_pending_and_leaves_no_thread(qwen2: Reference) -> None:
    replica = HFReplica(qwen2.config)
    with pytest.raises(InfrastructureError, match="not started"):
        await replica.health()
    await replica.init_standalone()
    await replica.pause_generation()
    task = asyncio.create_task(generate(replica, "a", [5], **HOW))
    await asyncio.sleep(0.01)
    await replica.shutdown()
    await replica.shutdown()
    with pytest.raises(InfrastructureError, match="shut down"):
        await task
    with pytest.raises(InfrastructureError, match="shut down"):
        await generate(replica, "a", [5], **HOW)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("agentverl-hf")]


async def test_weights_that_diverged_fail_their_requests(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await replica.update_weights([(name, torch.full_like(tensor, torch.nan)) for name, tensor in qwen2.weights()], 1)
    with pytest.raises(InfrastructureError, match="not finite"):
        await generate(replica, "a", [5], **HOW)
    await replica.update_weights(qwen2.weights(), 2)
    output = await generate(replica, "a", [5], seed=0, **HOW)
    assert output.log_probs == pytest.approx(qwen2.log_probs([5], output.token_ids), abs=1e-5)


async def test_stop_strings_without_a_tokenizer_and_images_are_refused(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    with pytest.raises(BadInputError, match="need a tokenizer"):
        await generate(replica, "a", [5], stop="x")
    with pytest.raises(BadInputError, match="text only"):
        await replica.generate("a", prompt_ids=[5], sampling_params={}, image_data=["picture"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MambaConfig(num_hidden_layers=1), "mamba"),
        (T5Config(num_layers=1, d_model=16, d_ff=16, vocab_size=16), "t5: it has an encoder"),
        (BloomConfig(n_layer=1, hidden_size=16, n_head=2, vocab_size=16), "bloom"),
    ],
    ids=["no attention", "an encoder", "a mask of its own"],
)
def test_architectures_that_cannot_be_served_are_refused(config: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        HFReplica(config)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        HFReplica(tmp_path)
    CONFIGS["qwen2"].save_pretrained(tmp_path)
    with pytest.raises(ModelFolderError, match="does not load"):
        HFReplica(tmp_path)


def test_settings_of_another_server_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has no enforce_eager; expected some of .*kv_memory_bytes"):
        HFReplica.from_spec(ReplicaSpec(model=tmp_path, tokenizer=None, engine_kwargs={"enforce_eager": True}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_model_len": 10_000}, "256 positions"),
        ({"kv_memory_bytes": 1000}, "lower max_model_len or raise kv_memory_bytes"),
    ],
)
def test_limits_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        HFReplica(CONFIGS["qwen2"], settings=HFSettings(**settings))
