"""A value head on the engine, and sums of squared probabilities, against a padded forward pass."""

from pathlib import Path
from typing import Any

import pytest
import torch

from agentverl.engines.base import ModelOutput
from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.metrics import Metric
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from tests.engines.tiny_models import CONFIGS, batch_of, engine_of, padded_reference

LENGTHS = [(20, 9), (7, 2), (1, 1), (4, 30), (2, 0)]


def critic_of(name: str, **settings: Any) -> FSDPEngine:
    engine = engine_of(name, head="value", **settings)
    head = engine.model.model.get_output_embeddings()
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    return engine


def squared_error(output: ModelOutput, data: DataProto) -> tuple[torch.Tensor, dict[str, Metric | float]]:
    assert output.values is not None
    error = (output.values - data.batch.ragged("advantages").to_padded()) ** 2
    loss = (error * data.batch.ragged("loss_weight").to_padded()).sum()
    return loss, {"loss": Metric(float(loss.detach()), "sum")}


def reference_values(engine: FSDPEngine, data: DataProto) -> torch.Tensor:
    """(B, T) from one sequence after the other, each alone."""
    model, head = padded_reference_of(engine), engine.model.model.get_output_embeddings()
    mask, rows = data.batch.ragged("response_mask"), []
    for prompt, response, kept in zip(data.batch.ragged("prompts"), data.batch.ragged("responses"), mask, strict=True):
        hidden = model.base_model(input_ids=torch.cat([prompt, response])[None]).last_hidden_state[0]
        values = (hidden[len(prompt) - 1 : -1] if len(response) else hidden[:0]) @ head.weight[0]
        rows.append(torch.where(kept != 0, values, 0.0))
    return Ragged.from_list(rows, torch.float32).to_padded()


def padded_reference_of(engine: FSDPEngine) -> Any:
    """transformers' own model with the engine's trunk."""
    model = padded_reference(engine_of(engine_name(engine)))
    model.base_model.load_state_dict(engine.model.model.base_model.state_dict())
    return model


def engine_name(engine: FSDPEngine) -> str:
    return next(name for name, config in CONFIGS.items() if config is engine.settings.model)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_tokens", [None, 40])
def test_values_are_those_before_each_token(name: str, max_tokens: int | None) -> None:
    engine, data = critic_of(name, max_tokens=max_tokens), batch_of(LENGTHS)
    values = engine.infer_batch(data).batch.ragged("values").to_padded()
    torch.testing.assert_close(values, reference_values(engine, data).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_micro_batches_change_no_gradient_of_a_critic(name: str) -> None:
    data, gradients = batch_of(LENGTHS), []
    for max_tokens in (None, 40):
        engine = critic_of(name, max_tokens=max_tokens)
        engine.forward_backward_batch(data, squared_error)
        gradients.append({key: weight.grad for key, weight in engine.weights.masters.items()})
    assert gradients[0].keys() == gradients[1].keys()
    for key, one in gradients[0].items():
        torch.testing.assert_close(one, gradients[1][key], rtol=1e-4, atol=1e-5)


def test_a_critic_starts_at_zero_and_fits_what_it_is_shown(tmp_path: Path) -> None:
    engine, data = engine_of(head="value"), batch_of(LENGTHS)
    assert not engine.infer_batch(data).batch.ragged("values").values.any()
    losses = [engine.train_batch(data, squared_error)["loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    engine.save_checkpoint(tmp_path)
    again = engine_of(head="value")
    again.load_checkpoint(tmp_path)
    assert engine.train_batch(data, squared_error) == again.train_batch(data, squared_error)


@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_sums_of_squared_probabilities_equal_those_of_plain_logits(name: str) -> None:
    engine, data = engine_of(name), batch_of(LENGTHS)
    computed = engine.infer_batch(data, calculate_sum_pi_squared=True).batch.ragged("sum_pi_squared")
    model, mask = padded_reference(engine), data.batch.ragged("response_mask")
    for row, (prompt, response) in enumerate(
        zip(data.batch.ragged("prompts"), data.batch.ragged("responses"), strict=True)
    ):
        logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0][len(prompt) - 1 : -1]
        temperature = data.batch.ragged("temperature")[row][:, None]
        expected = torch.softmax(logits[: len(response)] / temperature, -1).square().sum(-1).detach()
        torch.testing.assert_close(computed[row], torch.where(mask[row] != 0, expected, 0.0), rtol=1e-4, atol=1e-6)
