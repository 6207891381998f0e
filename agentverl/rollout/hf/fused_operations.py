"""Fewer and larger operations for what recorded models compute in many: norms and rotary positions.

What is replaced is found by its formula in the record, so it belongs to no model.
"""

import sys
from typing import Any

import torch
from torch.fx import GraphModule, wrap
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.fx.subgraph_rewriter import replace_pattern

_aten: Any = torch.ops.aten
_CASTS = (torch.ops.aten.to.dtype, torch.ops.aten.to.device)


@wrap
def rms_norm(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + epsilon) * weight over the last dimension (Zhang and Sennrich 2019).

    The quotient is computed in float32 and rounded before it is weighted, as modules do.
    """
    return torch.rms_norm(states, weight.shape, None, epsilon) * weight


@wrap
def signed_sine(sine: torch.Tensor, half: int) -> torch.Tensor:
    """The sine with its first half negated, which is made once a pass and serves all layers."""
    return torch.cat([-sine[..., :half], sine[..., half:]], -1)


@wrap
def rotated(states: torch.Tensor, cosine: torch.Tensor, signed: torch.Tensor, half: int) -> torch.Tensor:
    """Rotary positions (Su et al. 2021): each pair (x[i], x[i + half]) turned by its position's angle."""
    return (states * cosine).add_(states.roll(half, -1).mul_(signed))


def fuse(module: GraphModule) -> GraphModule:
    """The same computation in fewer operations, rounded where it was."""
    _drop_empty_casts(module)
    for pattern in (_norm, _norm_of_half_precision):
        replace_pattern(module, pattern, rms_norm)
    replace_pattern(module, _rotation, _fused_rotation)
    fused: GraphModule = CSEPass().call(module).graph_module
    return fused


def _drop_empty_casts(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _CASTS:
            before, after = node.args[0].meta["val"], node.meta["val"]
            if before.dtype == after.dtype and before.device == after.device:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)


def _norm(states: Any, weight: Any, epsilon: Any) -> Any:
    return _aten.mul.Tensor(weight, _normed(states, epsilon))


def _norm_of_half_precision(states: Any, weight: Any, epsilon: Any) -> Any:
    in_float32 = _aten.to.dtype(states, torch.float32)
    return _aten.mul.Tensor(weight, _aten.to.dtype(_normed(in_float32, epsilon), torch.bfloat16))


def _normed(states: Any, epsilon: Any) -> Any:
    mean_square = _aten.mean.dim(_aten.pow.Tensor_Scalar(states, 2), [-1], True)
    return _aten.mul.Tensor(states, _aten.rsqrt.default(_aten.add.Tensor(mean_square, epsilon)))


def _rotation(states: Any, cosine: Any, sine: Any, half: Any) -> Any:
    second, first = _aten.slice.Tensor(states, 3, half, sys.maxsize), _aten.slice.Tensor(states, 3, 0, half)
    turned = _aten.cat.default([_aten.neg.default(second), first], -1)
    return _aten.add.Tensor(_aten.mul.Tensor(states, cosine), _aten.mul.Tensor(turned, sine))


def _fused_rotation(states: Any, cosine: Any, sine: Any, half: Any) -> Any:
    return rotated(states, cosine, signed_sine(sine, half), half)
