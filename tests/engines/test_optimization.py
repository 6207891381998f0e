"""Steps, schedules, and what happens to a gradient that is not finite."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.engines.base import ModelOutput
from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.schedules import lr_factor
from agentverl.engines.settings import EngineSettings, OptimizerSettings, Schedule
from agentverl.errors import BadInputError, SettingsError
from agentverl.protocol.data_proto import DataProto
from tests.engines.tiny_models import CONFIGS, batch_of, engine_of


def nll(output: ModelOutput, data: DataProto) -> tuple[torch.Tensor, dict[str, float]]:
    loss = -(data.batch.ragged("loss_weight").to_padded() * output.log_probs).sum()
    return loss, {"nll": float(loss.detach())}


def test_training_lowers_the_loss() -> None:
    engine, data = engine_of(max_sequences=2), batch_of([(3, 9), (7, 2), (4, 12), (2, 0)])
    losses = [engine.train_batch(data, nll)["nll"] for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_step_equals_one_of_plain_adamw() -> None:
    settings = OptimizerSettings(lr=1e-2, weight_decay=0.1, clip_grad=0.05)
    engine, data = engine_of(optimizer=settings), batch_of([(3, 9), (7, 2)])
    plain = {name: torch.nn.Parameter(weight.clone()) for name, weight in engine.get_per_tensor_param()}
    engine.forward_backward_batch(data, nll)
    for name, master in engine.weights.masters.items():
        plain[name].grad = None if master.grad is None else master.grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(plain.values(), 0.05)
    torch.optim.AdamW(plain.values(), lr=1e-2, weight_decay=0.1).step()
    assert engine.optimizer_step() == pytest.approx(float(norm), rel=1e-5)
    for name, weight in engine.get_per_tensor_param():
        torch.testing.assert_close(weight, plain[name].detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_that_is_not_finite_leaves_the_weights_and_is_counted(value: float, dtype: str) -> None:
    engine, data = engine_of(dtype=dtype), batch_of([(3, 9), (7, 2)])
    before = {name: weight.clone() for name, weight in engine.get_per_tensor_param()}

    def spoilt(output: ModelOutput, _: DataProto) -> tuple[torch.Tensor, dict[str, float]]:
        return output.log_probs.sum() * value, {}

    metrics = engine.train_batch(data, spoilt)
    assert metrics["skipped_steps"] == 1
    assert not math.isfinite(metrics["grad_norm"])
    assert all(torch.equal(before[name], weight) for name, weight in engine.get_per_tensor_param())
    assert engine.train_batch(data, nll)["skipped_steps"] == 0
    assert not all(torch.equal(before[name], weight) for name, weight in engine.get_per_tensor_param())


def test_schedules_at_their_marks() -> None:
    def factors(steps: list[int], **settings: Any) -> list[float]:
        optimizer = OptimizerSettings(lr_warmup_steps=10, total_training_steps=110, **settings)
        return [lr_factor(optimizer, step) for step in steps]

    assert factors([0, 5, 10, 200]) == [0.0, 0.5, 1.0, 1.0]
    assert factors([10, 60, 110, 500], lr_scheduler_type="linear", min_lr_ratio=0.2) == pytest.approx(
        [1, 0.6, 0.2, 0.2]
    )
    assert factors([10, 60, 110], lr_scheduler_type="cosine", min_lr_ratio=0.2) == pytest.approx([1, 0.6, 0.2])
    assert factors([10, 99, 105, 110], lr_scheduler_type="wsd") == pytest.approx([1, 1, 0.5, 0], abs=1e-9)


@given(st.sampled_from(get_args(Schedule)), st.integers(0, 30), st.integers(0, 60))
def test_a_learning_rate_never_leaves_its_range(kind: Schedule, warmup: int, step: int) -> None:
    settings = OptimizerSettings(lr_scheduler_type=kind, lr_warmup_steps=warmup, total_training_steps=40)
    assert 0.0 <= lr_factor(settings, step) <= 1.0


def test_the_learning_rate_of_a_step_is_reported_and_used() -> None:
    engine = engine_of(optimizer=OptimizerSettings(lr=1e-2, lr_warmup_steps=2))
    data = batch_of([(3, 9)])
    before = dict(engine.get_per_tensor_param())["model.embed_tokens.weight"].clone()
    engine.train_batch(data, nll)
    assert torch.equal(before, dict(engine.get_per_tensor_param())["model.embed_tokens.weight"])
    assert [engine.lr_scheduler_step() for _ in range(3)] == [0.0, 0.005, 0.01]


def test_a_decay_needs_the_number_of_steps() -> None:
    with pytest.raises(SettingsError, match="total_training_steps"):
        OptimizerSettings(lr_scheduler_type="cosine")


def test_a_reference_refuses_to_be_trained() -> None:
    engine = FSDPEngine(EngineSettings(model=CONFIGS["qwen2"]))
    engine.initialize()
    assert len(engine.infer_batch(batch_of([(3, 4)]))) == 1
    with pytest.raises(BadInputError, match="no optimiser"):
        engine.train_batch(batch_of([(3, 4)]), nll)
