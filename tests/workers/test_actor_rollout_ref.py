"""The worker of a policy, with the shipped nano model: sampled, evaluated, updated, handed over, saved."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentverl.errors import BadInputError
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.replica import RolloutReplica
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.trajectory import TokenOutput
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker, PolicyRun

PROMPTS = [[5, 17, 9, 40], [8, 3], [21, 22, 23, 24, 25, 26]]


def config(**actor: object) -> ActorRolloutRefSettings:
    return ActorRolloutRefSettings.model_validate(
        {
            "model": {"path": "nano", "enable_gradient_checkpointing": False},
            "actor": {"fsdp_config": {"dtype": "float32"}, "optim": {"lr": 1e-3}, **actor},
            "rollout": {"max_model_len": 128},
        }
    )


def policy(settings: ActorRolloutRefSettings | None = None, **run: Any) -> WorkerGroup:
    group = start_workers("local", WorkerClass(ActorRolloutRefWorker, (settings or config(), PolicyRun(**run))))
    group.init_model()
    return group


@pytest.fixture
async def served() -> AsyncIterator[tuple[WorkerGroup, RolloutReplica]]:
    group = policy(config(use_kl_loss=True, calculate_entropy=True), needs_reference=True)
    await group.start_replica()
    await group.update_weights(0)
    yield group, group.replica()
    await group.stop_replica()


async def sampled(replica: RolloutReplica, temperature: float = 1.3) -> DataProto:
    """A batch of answers to the prompts, with advantages."""
    answers = []
    for number, prompt in enumerate(PROMPTS):
        params = {"temperature": temperature, "max_tokens": 12, "ignore_eos": True, "seed": number}
        answers.append(await replica.generate(str(number), prompt_ids=prompt, sampling_params=params))
    responses = Ragged.from_list([answer.token_ids for answer in answers], torch.long)
    random = torch.Generator().manual_seed(0)
    columns = {
        "prompts": Ragged.from_list(PROMPTS, torch.long),
        "responses": responses,
        "response_mask": responses.like(torch.ones_like(responses.values)),
        "temperature": responses.like(torch.full(responses.values.shape, temperature)),
        "rollout_log_probs": Ragged.from_list([answer.log_probs or [] for answer in answers], torch.float32),
        "advantages": responses.like(torch.randn(len(responses.values), generator=random)),
    }
    return DataProto(Columns(columns), {"trajectory_id": np.array(["a", "b", "c"], dtype=object)})


async def test_server_engine_and_reference_agree_also_after_an_update(
    served: tuple[WorkerGroup, RolloutReplica],
) -> None:
    group, replica = served
    data = await sampled(replica)
    rollout = data.batch.ragged("rollout_log_probs").values
    for computed in (group.compute_log_prob(data), group.compute_ref_log_prob(data)):
        torch.testing.assert_close(computed.batch.ragged("log_probs").values, rollout, rtol=0, atol=1e-5)
    data.batch["ref_log_prob"] = group.compute_ref_log_prob(data).batch["log_probs"]
    metrics = group.update_actor(data)
    assert {
        "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/entropy", "actor/kl_loss", "actor/grad_norm",
        "actor/lr", "actor/loss", "actor/skipped_steps",
    } <= metrics.keys()  # fmt: skip
    assert metrics["actor/lr"] == 1e-3
    await group.update_weights(7)
    assert replica.weight_version == 7
    again = await sampled(replica, 0.6)
    assert [version for _, version in (await _one(replica)).weight_versions] == [7]
    updated = group.compute_log_prob(again).batch.ragged("log_probs").values
    torch.testing.assert_close(updated, again.batch.ragged("rollout_log_probs").values, rtol=0, atol=1e-5)
    reference = group.compute_ref_log_prob(again).batch.ragged("log_probs").values
    assert float((reference - updated).abs().max()) > 1e-3


async def _one(replica: RolloutReplica) -> TokenOutput:
    return await replica.generate("one", prompt_ids=[4, 5], sampling_params={"max_tokens": 1})


async def test_an_update_raises_the_probability_of_what_was_good(served: tuple[WorkerGroup, RolloutReplica]) -> None:
    group, replica = served
    data = await sampled(replica)
    data.batch["ref_log_prob"] = data.batch.ragged("rollout_log_probs")
    before = group.compute_log_prob(data).batch.ragged("log_probs").values
    for _ in range(3):
        data.batch["old_log_probs"] = group.compute_log_prob(data).batch["log_probs"]
        group.update_actor(data)
    after = group.compute_log_prob(data).batch.ragged("log_probs").values
    assert float(((after - before) * data.batch.ragged("advantages").values).sum()) > 0


async def test_a_checkpoint_goes_on_bit_by_bit_and_exports_what_is_served(
    served: tuple[WorkerGroup, RolloutReplica], tmp_path: Path
) -> None:
    group, replica = served
    data = await sampled(replica)
    data.batch["ref_log_prob"] = data.batch.ragged("rollout_log_probs")
    group.update_actor(data)
    group.save_checkpoint(tmp_path)
    resumed = policy(config(use_kl_loss=True, calculate_entropy=True))
    resumed.load_checkpoint(tmp_path)
    assert resumed.update_actor(data) == group.update_actor(data)
    group.export(tmp_path)
    folder = tmp_path / "huggingface"
    assert AutoTokenizer.from_pretrained(folder).chat_template
    exported = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    await group.update_weights(1)
    for name, weight in group.workers[0].actor.get_per_tensor_param():
        assert torch.equal(exported[name], weight)


async def test_a_server_that_rests_while_the_policy_is_trained_answers_as_one_that_does_not() -> None:
    answers = []
    for rests in (True, False):
        rollout = config().rollout.model_copy(update={"free_cache_engine": rests})
        group = policy(config().model_copy(update={"rollout": rollout}))
        await group.start_replica()
        await group.update_weights(0)
        data = await sampled(group.replica())
        await group.rest_replica()
        state = (await group.replica().health())["state"]
        assert state == ("asleep" if rests else "serving")
        group.load_training_state()
        for _ in range(2):
            group.update_actor(data)
        group.offload_training_state()
        await group.update_weights(1)
        answers.append(await sampled(group.replica()))
        held = group.memory()[0]
        assert {f"perf/cpu_memory_gb/{phase}" for phase in ("gen", "update_actor", "update_weights")} <= held.keys()
        await group.stop_replica()
    for column in ("responses", "rollout_log_probs"):
        assert torch.equal(*(answer.batch.ragged(column).values for answer in answers))


def test_without_an_actor_or_reference_the_calls_say_so() -> None:
    group = policy(needs_actor=False)
    data = DataProto(Columns({"prompts": Ragged.from_list([[1]]), "responses": Ragged.from_list([[2]])}))
    with pytest.raises(BadInputError, match="no actor"):
        group.compute_log_prob(data)
    with pytest.raises(BadInputError, match="no reference"):
        group.compute_ref_log_prob(data)


async def test_a_policy_that_is_only_sampled_from_serves_its_folder() -> None:
    group = policy(needs_actor=False)
    await group.start_replica()
    try:
        assert len((await _one(group.replica())).token_ids) == 1
    finally:
        await group.stop_replica()


@pytest.mark.parametrize(
    ("nnodes", "backend", "lent"), [(1, "shared_memory", True), (1, "gloo", False), (0, "naive", False)]
)
def test_weights_lie_where_servers_of_other_processes_can_read_them(nnodes: int, backend: str, lent: bool) -> None:
    rollout = {"nnodes": nnodes, "checkpoint_engine": {"backend": backend}}
    settings = config()
    whole = ActorRolloutRefSettings.model_validate(
        settings.model_dump() | {"rollout": settings.rollout.model_dump() | rollout}
    )
    worker = ActorRolloutRefWorker(whole)
    worker.init_model()
    assert all(tensor.untyped_storage().is_shared() == lent for _, tensor in worker.actor.get_per_tensor_param())
