"""Norms and rotary positions in fewer operations, against what transformers computes."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, apply_rotary_pos_emb

from agentverl.rollout.hf.fused_operations import fuse, rms_norm, rotated, signed_sine

TOKENS, HEADS, SIZE = 5, 3, 8


def recorded(function: Any, *inputs: torch.Tensor) -> GraphModule:
    """The operations of a function, before and after."""
    return fuse(make_fx(function, tracing_mode="fake", pre_dispatch=True)(*inputs))


def operations(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_one_operation(dtype: torch.dtype) -> None:
    norm = Qwen2RMSNorm(SIZE, eps=1e-3).to(dtype).requires_grad_(False)
    norm.weight.copy_(torch.rand(SIZE))
    states = torch.randn(1, TOKENS, SIZE).to(dtype)
    fused = recorded(
        lambda states, weight: torch.func.functional_call(norm, {"weight": weight}, states), states, norm.weight
    )
    assert torch.ops.aten.pow.Tensor_Scalar not in operations(fused)
    assert torch.equal(fused(states, norm.weight), norm(states))


def test_a_norm_whose_insides_are_used_elsewhere_is_left_alone() -> None:
    def with_scale(states: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * (states * scale), scale

    states, weight = torch.randn(TOKENS, SIZE), torch.rand(SIZE)
    fused = recorded(with_scale, states, weight)
    assert rms_norm not in operations(fused)
    for found, expected in zip(fused(states, weight), with_scale(states, weight), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_rotated_with_one_sine_for_all(dtype: torch.dtype) -> None:
    query, key = torch.randn(1, HEADS, TOKENS, SIZE), torch.randn(1, 1, TOKENS, SIZE)
    angles = torch.rand(1, TOKENS, SIZE // 2).repeat(1, 1, 2)
    inputs = [states.to(dtype) for states in (query, key, angles.cos(), angles.sin())]
    fused = recorded(partial(apply_rotary_pos_emb, unsqueeze_dim=1), *inputs)
    assert operations(fused).count(rotated) == 2
    assert operations(fused).count(signed_sine) == 1
    for found, expected in zip(fused(*inputs), apply_rotary_pos_emb(*inputs), strict=True):
        assert torch.equal(found, expected)
