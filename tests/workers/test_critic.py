"""The critic's worker with the shipped nano model: values, updates under verl's names, and what it saves."""

from pathlib import Path

import pytest
import torch

from agentverl.engines.base import ModelOutput
from agentverl.errors import BadInputError
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.actor import ActorSettings
from agentverl.settings.critic import CriticSettings
from agentverl.settings.model import ModelSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.workers.critic import CriticWorker
from agentverl.workers.value_loss import value_loss


def critic_of(**keys: object) -> WorkerGroup:
    settings = CriticSettings.model_validate({"optim": {"lr": 3e-3}, "fsdp": {"dtype": "float32"}, **keys})
    model = settings.model.beside(ModelSettings(path="nano", enable_gradient_checkpointing=False))
    group = start_workers("local", WorkerClass(CriticWorker, (settings.completed(ActorSettings()), model)))
    group.init_model()
    return group


def batch() -> DataProto:
    """Three answers to two prompts, each of which returns as much as its first token is high."""
    prompts, responses = [[5, 17, 9, 40], [5, 17, 9, 40], [8, 3]], [[7, 9, 11], [50, 9], [7, 8, 9, 10]]
    tokens = Ragged.from_list(responses, torch.long)
    returns = [float(row[0] > 20) for row in responses for _ in row]
    mask = torch.tensor([1, 1, 1, 1, 0, 1, 1, 0, 1])
    return DataProto(
        Columns(
            {
                "prompts": Ragged.from_list(prompts, torch.long),
                "responses": tokens,
                "response_mask": tokens.like(mask),
                "returns": tokens.like(torch.tensor(returns)),
                "loss_weight": tokens.like(mask / mask.sum()),
            }
        )
    )


def test_a_critic_learns_returns_and_goes_on_from_what_it_saved(tmp_path: Path) -> None:
    critic, data = critic_of(cliprange_value=10.0), batch()
    data.batch["values"] = critic.compute_values(data).batch["values"]
    assert not data.batch.ragged("values").values.any()
    logged = [critic.update_critic(data) for _ in range(25)]
    assert min(step["critic/vf_loss"] for step in logged) < 0.6 * logged[0]["critic/vf_loss"]
    assert logged[0]["critic/vf_loss"] == pytest.approx(0.5 * 1 / 7)
    assert {"critic/vf_clipfrac", "critic/vpred_mean", "critic/grad_norm", "critic/lr"} <= logged[0].keys()
    critic.save_checkpoint(tmp_path)
    again = critic_of(cliprange_value=10.0)
    again.load_checkpoint(tmp_path)
    assert again.update_critic(data) == critic.update_critic(data)
    first, second = (one.compute_values(data).batch.ragged("values").values for one in (critic, again))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_resuming_reads_what_the_settings_name(tmp_path: Path) -> None:
    critic, data = critic_of(cliprange_value=10.0), batch()
    data.batch["values"] = critic.compute_values(data).batch["values"]
    critic.update_critic(data)
    critic.save_checkpoint(tmp_path)
    weights_only = critic_of(cliprange_value=10.0, checkpoint={"load_contents": ["model"]})
    weights_only.load_checkpoint(tmp_path)
    first, second = (one.compute_values(data).batch.ragged("values").values for one in (critic, weights_only))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    for one in (critic, weights_only):
        one.update_critic(data)
    with_moments, without = (one.compute_values(data).batch.ragged("values").values for one in (critic, weights_only))
    assert not torch.equal(with_moments, without)


def test_what_is_null_is_the_actors() -> None:
    actor = ActorSettings(ppo_mini_batch_size=7, ppo_epochs=3, loss_agg_mode="seq-mean-token-mean")
    completed = CriticSettings(ppo_epochs=2).completed(actor)
    assert (completed.ppo_mini_batch_size, completed.ppo_epochs, completed.shuffle) == (7, 2, False)
    assert completed.loss_agg_mode == "seq-mean-token-mean"
    policy = ModelSettings(path="nano", override_config={"a": 1}, trust_remote_code=True)
    model = CriticSettings.model_validate({"model": {"path": "other"}}).model.beside(policy)
    assert (model.path, model.override_config, model.trust_remote_code) == ("other", {"a": 1}, True)


def test_a_value_that_moved_too_far_is_clipped() -> None:
    data = batch()
    data.batch["values"] = data.batch.ragged("returns").like(torch.zeros(9))
    predicted = data.batch.ragged("returns").like(torch.full((9,), 2.0)).to_padded()
    loss, metrics = value_loss(0.5, ModelOutput(torch.zeros_like(predicted), values=predicted), data)
    # The larger of the two squared errors counts: 2 where nothing is earned, 1 where one is.
    assert float(loss) == pytest.approx(0.5 * (6 * 4.0 + 1.0) / 7)
    assert metrics["critic/vpred_mean"].value == pytest.approx(2.0)  # type: ignore[union-attr]


def test_a_language_model_has_no_values() -> None:
    with pytest.raises(BadInputError, match="needs a model with a value head"):
        value_loss(0.5, ModelOutput(torch.zeros(3, 4)), batch())


def test_without_init_model_the_calls_say_so() -> None:
    settings = CriticSettings()
    model = settings.model.beside(ModelSettings(path="nano"))
    group = start_workers("local", WorkerClass(CriticWorker, (settings, model)))
    with pytest.raises(BadInputError, match=r"no critic: call init_model\(\)"):
        group.load_training_state()
