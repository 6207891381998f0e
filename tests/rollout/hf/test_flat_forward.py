"""The flat forward pass against the plain one."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from transformers import LlamaForCausalLM

from agentverl.rollout.hf.attention import NAME
from agentverl.rollout.hf.checking import _served, check
from agentverl.rollout.hf.flat_forward import FlatForward, recorded
from agentverl.rollout.hf.model import ServedModel, load
from agentverl.rollout.hf.packed_linear import PackedGate, PackedLinear
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.hf.weights import apply, stage
from tests.rollout.hf.tiny_models import CONFIGS, Reference

SEQUENCES = torch.arange(1, 8).numpy(), torch.arange(9, 14).numpy()


def served(name: str, dtype: str = "float32", seed: int = 0) -> ServedModel:
    """A model with random weights, and its flat forward pass."""
    torch.manual_seed(seed)
    model = load(CONFIGS[name], HFSettings(dtype=dtype), ())
    check(model)
    return model


def logits(model: ServedModel, flat: FlatForward | None) -> torch.Tensor:
    model.flat = flat
    with torch.inference_mode():
        return _served(model, SEQUENCES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_gives_the_logits_of_the_plain_pass(name: str, dtype: str) -> None:
    model = served(name, dtype)
    flat = model.flat
    assert flat is not None
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    torch.testing.assert_close(logits(model, flat), logits(model, None), rtol=tolerance, atol=tolerance)


def test_it_follows_new_weights(other_qwen2: Reference) -> None:
    model = served("qwen2")
    flat = model.flat
    before = logits(model, flat)
    apply(model, stage(model, other_qwen2.weights()))
    model.flat = flat
    model.forget_copies()
    after = logits(model, flat)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, logits(model, None), rtol=1e-5, atol=1e-5)


def test_models_of_one_configuration_keep_their_own_weights() -> None:
    models = [served("llama", seed=seed) for seed in (0, 1)]
    first, second = (logits(model, model.flat) for model in models)
    assert (first - second).abs().max() > 0.1
    for model, flat in zip(models, (first, second), strict=True):
        torch.testing.assert_close(flat, logits(model, None), rtol=1e-5, atol=1e-5)


class ChoosingBySize(LlamaForCausalLM):  # type: ignore[misc]  # transformers has no types
    """Reads long inputs in another way."""

    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return super().forward(input_ids.flip(1) if input_ids.shape[1] > 5 else input_ids, **kwargs)


class ChoosingByToken(LlamaForCausalLM):  # type: ignore[misc]  # transformers has no types
    """Reads some tokens in another way."""

    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return super().forward(input_ids.flip(1) if input_ids.max() > 5 else input_ids, **kwargs)


@pytest.mark.parametrize("architecture", [LlamaForCausalLM, ChoosingBySize, ChoosingByToken])
def test_only_a_model_that_makes_no_choices_is_recorded(architecture: Any) -> None:
    config = CONFIGS["llama"].__class__.from_dict(CONFIGS["llama"].to_dict())
    model = architecture._from_config(config, attn_implementation=NAME).requires_grad_(False)
    flat = recorded(model, "cache", config.num_hidden_layers)
    assert (flat is not None) == (architecture is LlamaForCausalLM)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_packed_layers_are_linear_layers(sizes: list[int], inputs: int, rows: int, biased: bool) -> None:
    layers = [[torch.randn(size, inputs), *([torch.randn(size)] if biased else [])] for size in sizes]
    states = torch.randn(1, rows, inputs)
    packed, gate = PackedLinear(layers), PackedGate(layers[0], layers[0])
    for _ in range(2):
        outputs = packed(states) if len(sizes) > 1 else [packed(states)]
        expected = [functional.linear(states, *layer) for layer in layers]
        torch.testing.assert_close(list(outputs), expected, rtol=1e-4, atol=1e-4)
        gated = functional.silu(expected[0]) * expected[0]
        torch.testing.assert_close(gate(states), gated, rtol=1e-4, atol=1e-4)
        for weight, *_rest in layers:
            weight.data = torch.randn_like(weight)
        packed.forget_weights()
        gate.forget_weights()
