"""New weights come as a complete set, at a token boundary, and no stale cache outlives them."""

import asyncio
from typing import Any

import pytest
import torch

from agentverl.errors import BadInputError, InfrastructureError
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.replica_spec import ReplicaSpec
from tests.rollout.hf.conftest import Serve
from tests.rollout.hf.tiny_models import Reference, generate, steps_later

HOW: dict[str, Any] = {"ignore_eos": True, "max_tokens": 12}
QUESTION, RESULT = [5, 6, 7, 8], [20, 21, 22]


async def test_weights_change_between_turns(qwen2: Reference, other_qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    await replica.open("a")
    first = await generate(replica, "a", QUESTION, seed=0, **HOW)
    await replica.update_weights(other_qwen2.weights(), 1)
    assert replica.weight_version == 1
    context = QUESTION + first.token_ids + RESULT
    second = await generate(replica, "a", context, seed=1, **HOW)
    assert (first.weight_versions, second.weight_versions) == ([(12, 0)], [(12, 1)])
    assert second.num_cached_tokens == 0
    assert second.log_probs == pytest.approx(other_qwen2.log_probs(context, second.token_ids), abs=1e-5)


async def test_weights_change_in_the_middle_of_requests(qwen2: Reference, other_qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2, max_num_seqs=3)
    how = {"ignore_eos": True, "max_tokens": 200, "temperature": 0.9}
    tasks = [asyncio.create_task(generate(replica, str(i), QUESTION, seed=i, **how)) for i in range(5)]
    for version, reference in ((1, other_qwen2), (2, qwen2)):
        await steps_later(replica, 20)
        await replica.update_weights(reference.weights(), version)
    models = {0: qwen2, 1: other_qwen2, 2: qwen2}
    outputs = await asyncio.gather(*tasks)
    for output in outputs:
        assert len(output.token_ids) == 200 == output.weight_versions[-1][0]
        start, log_probs = 0, []
        for stop, version in output.weight_versions:
            before = QUESTION + output.token_ids[:start]
            log_probs += models[version].log_probs(before, output.token_ids[start:stop], 0.9)
            start = stop
        assert output.log_probs == pytest.approx(log_probs, abs=1e-5)
    assert max(len(output.weight_versions) for output in outputs) > 1
    assert max(output.num_preempted for output in outputs) >= 1


def without(weights: list[tuple[str, torch.Tensor]], name: str) -> list[tuple[str, torch.Tensor]]:
    return [(other, tensor) for other, tensor in weights if other != name]


async def test_an_incomplete_or_wrong_set_leaves_the_old_weights(
    qwen2: Reference, other_qwen2: Reference, serve: Serve
) -> None:
    replica = await serve(qwen2)
    expected = await generate(replica, "a", QUESTION, seed=0, **HOW)
    weights = other_qwen2.weights()
    name = weights[3][0]
    wrong = {
        f"lack {name}: expected a complete set": without(weights, name),
        "'lm_heat', which the served model does not have": [*weights, ("lm_heat", torch.zeros(1))],
        r"of shape \(3,\), expected": [*without(weights, name), (name, torch.zeros(3))],
    }
    for message, given in wrong.items():
        with pytest.raises(BadInputError, match=message):
            await replica.update_weights(given, 1)
        assert replica.weight_version == 0
        assert (await generate(replica, "a", QUESTION, seed=0, **HOW)).token_ids == expected.token_ids


async def test_tied_weights_may_come_once_or_twice_and_as_another_dtype(serve: Serve) -> None:
    llama = Reference.make("llama")
    replica = await serve(llama)
    names = dict(llama.model.named_parameters(remove_duplicate=False))
    assert len(names) > len(llama.weights())
    await replica.update_weights(((name, tensor.double()) for name, tensor in names.items()), 1)
    output = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert output.log_probs == pytest.approx(llama.log_probs(QUESTION, output.token_ids), abs=1e-5)


async def test_the_sender_may_change_its_weights_afterwards(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    mine = [(name, tensor.clone()) for name, tensor in qwen2.weights()]
    await replica.update_weights(mine, 1)
    for _, tensor in mine:
        tensor.zero_()
    output = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert output.log_probs == pytest.approx(qwen2.log_probs(QUESTION, output.token_ids), abs=1e-5)


async def test_an_empty_server_serves_after_its_first_weights(qwen2: Reference) -> None:
    replica = HFReplica(qwen2.config, settings=HFSettings(load_weights=False))
    await replica.init_hybrid()
    assert replica.weight_version == -1
    with pytest.raises(InfrastructureError, match="no weights yet"):
        await generate(replica, "a", QUESTION, **HOW)
    await replica.update_weights(qwen2.weights(), 7)
    output = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert output.weight_versions == [(12, 7)]
    await replica.shutdown()


async def test_a_saved_model_folder_is_served_as_it_is(qwen2: Reference, tmp_path: Any) -> None:
    qwen2.model.save_pretrained(tmp_path)
    replica = HFReplica.from_spec(ReplicaSpec(model=tmp_path, tokenizer=None, engine_kwargs={"kv_memory_bytes": 10**6}))
    await replica.init_colocated()
    output = await generate(replica, "a", QUESTION, seed=0, **HOW)
    await replica.shutdown()
    assert output.log_probs == pytest.approx(qwen2.log_probs(QUESTION, output.token_ids), abs=1e-5)


async def test_dropped_weights_hold_no_memory_until_the_next_set(
    qwen2: Reference, other_qwen2: Reference, serve: Serve
) -> None:
    replica = await serve(qwen2)
    await replica.open("a")
    await generate(replica, "a", QUESTION, seed=0, **HOW)
    await replica.sleep(keep_weights=False)
    parameters = replica._model.parameters().values()
    assert sum(parameter.untyped_storage().nbytes() for parameter in parameters) == 4 * len(parameters)
    assert (await replica.health())["kv_memory_bytes"] == 0
    with pytest.raises(BadInputError, match="call update_weights first"):
        await replica.wake_up()
    waiting = asyncio.create_task(generate(replica, "a", QUESTION, seed=0, **HOW))
    await asyncio.sleep(0)
    with pytest.raises(BadInputError, match="expected a complete set"):
        await replica.update_weights(other_qwen2.weights()[1:], 1)
    assert (await replica.health())["state"] == "asleep"
    await replica.update_weights(other_qwen2.weights(), 1)
    await replica.wake_up()
    output = await waiting
    assert output.weight_versions == [(12, 1)]
    assert output.log_probs == pytest.approx(other_qwen2.log_probs(QUESTION, output.token_ids), abs=1e-5)


async def test_tied_weights_are_dropped_and_come_back_once(serve: Serve) -> None:
    llama = Reference.make("llama")
    replica = await serve(llama)
    expected = await generate(replica, "a", QUESTION, seed=0, **HOW)
    await replica.sleep(keep_weights=False)
    await replica.update_weights(llama.weights(), 1)
    await replica.wake_up()
    assert (await generate(replica, "a", QUESTION, seed=0, **HOW)).token_ids == expected.token_ids
    names = llama.model.named_parameters(remove_duplicate=False)
    places = {name: replica._model.parameters()[name].data_ptr() for name, _ in names}
    assert len(set(places.values())) == len(dict(llama.model.named_parameters()))


async def test_two_sets_of_memory_serve_all_updates_and_a_sleep_gives_them_back(
    qwen2: Reference, other_qwen2: Reference, serve: Serve
) -> None:
    replica = await serve(qwen2)
    seen = set()
    for version, reference in enumerate((other_qwen2, qwen2, other_qwen2, qwen2), 1):
        await replica.update_weights(reference.weights(), version)
        seen.add(replica._model.model.get_output_embeddings().weight.data_ptr())
    output = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert output.log_probs == pytest.approx(qwen2.log_probs(QUESTION, output.token_ids), abs=1e-5)
    assert len(seen) == 2
    await replica.sleep(keep_weights=False)
    assert not replica._model.spare


async def test_memory_that_was_left_by_a_server_that_sleeps_takes_weights_too(qwen2: Reference, serve: Serve) -> None:
    replica = await serve(qwen2)
    for version in (1, 2, 3):
        await replica.sleep(keep_weights=version != 2)
        await replica.update_weights(qwen2.weights(), version)
        await replica.update_weights(qwen2.weights(), version)
        await replica.wake_up()
    output = await generate(replica, "a", QUESTION, seed=0, **HOW)
    assert output.log_probs == pytest.approx(qwen2.log_probs(QUESTION, output.token_ids), abs=1e-5)
