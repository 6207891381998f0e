"""The packed forward and backward pass against transformers' own padded one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentverl.engines.base import ModelOutput
from agentverl.engines.metrics import Metric
from agentverl.protocol.data_proto import DataProto
from tests.engines.tiny_models import CONFIGS, batch_of, engine_of, padded_reference, reference_log_probs

LENGTHS = [(3, 9), (7, 2), (1, 1), (4, 30), (4, 30), (2, 0), (5, 12), (1, 29)]


def weighted_loss(output: ModelOutput, data: DataProto) -> tuple[torch.Tensor, dict[str, Metric | float]]:
    """A loss with a gradient through log-probabilities and entropies."""
    assert output.entropy is not None
    advantages, weight = data.batch.ragged("advantages").to_padded(), data.batch.ragged("loss_weight").to_padded()
    loss = (weight * (-advantages * output.log_probs.exp() - 0.3 * output.entropy)).sum()
    return loss, {"loss": Metric(float(loss.detach()), "sum")}


def reference_gradients(model: torch.nn.Module, data: DataProto) -> dict[str, torch.Tensor]:
    model.zero_grad()
    log_probs, entropy = reference_log_probs(model, data)
    torch.autograd.backward(weighted_loss(ModelOutput(log_probs, entropy), data)[0])
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """To 1e-5 of the largest entry."""
    assert float((ours - reference).abs().max()) <= 1e-5 * max(float(reference.abs().max()), 1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_and_entropies_equal_those_of_a_padded_forward(name: str) -> None:
    engine, data = engine_of(name), batch_of(LENGTHS)
    with torch.no_grad():
        log_probs, entropy = reference_log_probs(padded_reference(engine), data)
    computed = engine.infer_batch(data, calculate_entropy=True)
    torch.testing.assert_close(computed.batch.ragged("log_probs").to_padded(), log_probs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(computed.batch.ragged("entropys").to_padded(), entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_equal_those_of_a_padded_forward(name: str, checkpointing: bool) -> None:
    engine, data = engine_of(name, max_tokens=60, enable_gradient_checkpointing=checkpointing), batch_of(LENGTHS)
    model = padded_reference(engine)
    engine.forward_backward_batch(data, weighted_loss, calculate_entropy=True)
    expected = reference_gradients(model, data)
    assert engine.weights.masters.keys() == expected.keys()
    for gradient_name, gradient in expected.items():
        ours = engine.weights.masters[gradient_name].grad
        assert ours is not None
        assert_close(ours, gradient)


@pytest.mark.parametrize("kept", [0, 2**28])
def test_recomputed_logits_give_the_same_gradients_as_kept_ones(kept: int) -> None:
    engine, data = engine_of(kept_logits_bytes=kept), batch_of(LENGTHS)
    expected = reference_gradients(padded_reference(engine), data)
    engine.forward_backward_batch(data, weighted_loss, calculate_entropy=True)
    for gradient_name, gradient in expected.items():
        ours = engine.weights.masters[gradient_name].grad
        assert ours is not None
        assert_close(ours, gradient)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=12),
    max_sequences=st.sampled_from([1, 2, 3, None]),
    seed=st.integers(0, 1000),
)
def test_loss_and_gradients_do_not_depend_on_the_split(
    lengths: list[tuple[int, int]], max_sequences: int | None, seed: int
) -> None:
    data = batch_of(lengths, seed)
    whole, split = engine_of(), engine_of(max_sequences=max_sequences)
    losses = [
        engine.forward_backward_batch(data, weighted_loss, calculate_entropy=True)["loss"] for engine in (whole, split)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5, abs=1e-6)
    for one, other in zip(whole.weights.masters.values(), split.weights.masters.values(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            assert_close(one.grad, other.grad)
    alone = whole.infer_batch(data).batch.ragged("log_probs")
    torch.testing.assert_close(split.infer_batch(data).batch.ragged("log_probs").values, alone.values)


def test_a_batch_without_anything_to_predict_trains_nothing() -> None:
    engine, data = engine_of(), batch_of([(3, 0), (2, 0)])
    before = {name: weight.clone() for name, weight in engine.get_per_tensor_param()}
    metrics = engine.train_batch(data, weighted_loss, calculate_entropy=True)
    assert metrics["grad_norm"] == 0
    assert engine.tokens_forwarded == 0
    assert all(torch.equal(before[name], weight) for name, weight in engine.get_per_tensor_param())


def test_only_tokens_up_to_the_last_prediction_are_forwarded() -> None:
    engine, data = engine_of(), batch_of([(4, 6)])
    data.batch["response_mask"] = data.batch.ragged("responses").like(torch.tensor([0, 1, 1, 0, 0, 0]))
    engine.infer_batch(data)
    assert engine.tokens_forwarded == 4 + 3 - 1


def test_greedy_tokens_count_at_temperature_one() -> None:
    engine, data = engine_of(), batch_of([(3, 5)])
    zero, one = (data.batch.ragged("responses").like(torch.full((5,), value)) for value in (0.0, 1.0))
    data.batch["temperature"] = zero
    greedy = engine.infer_batch(data).batch.ragged("log_probs")
    data.batch["temperature"] = one
    assert torch.equal(greedy.values, engine.infer_batch(data).batch.ragged("log_probs").values)


def test_dropout_of_the_configuration_is_not_applied() -> None:
    engine, data = engine_of("gpt_neox"), batch_of(LENGTHS)
    first, second = (engine.infer_batch(data).batch.ragged("log_probs").values for _ in range(2))
    assert torch.equal(first, second)


def test_bfloat16_follows_float32() -> None:
    exact, rounded = engine_of(), engine_of(dtype="bfloat16")
    data = batch_of(LENGTHS)
    for _ in range(5):
        metrics = [engine.train_batch(data, weighted_loss, calculate_entropy=True) for engine in (exact, rounded)]
    assert metrics[0]["loss"] == pytest.approx(metrics[1]["loss"], rel=0.1)
    assert {weight.dtype for _, weight in rounded.get_per_tensor_param()} == {torch.bfloat16}
    assert {weight.dtype for weight in rounded.weights.masters.values()} == {torch.float32}
