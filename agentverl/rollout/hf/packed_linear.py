"""Linear layers of one input as one matrix product with weights in oneDNN's own order, as they change rarely.

A matrix product of few rows otherwise spends a third of its time on putting the weights in order.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch

MOST_BYTES = 2**30
"""Packed weights lie beside the model's own, which take at most so much."""

_DTYPES = (torch.float32, torch.bfloat16)


def can_pack(parameters: Collection[torch.Tensor]) -> bool:
    """Whether weights of this kind can be packed here, products with them are then faster, and the copies are small."""
    if not torch._C._has_mkldnn or sum(parameter.nbytes for parameter in parameters) > MOST_BYTES:
        return False
    if any(parameter.device.type != "cpu" or parameter.dtype not in _DTYPES for parameter in parameters):
        return False
    halves = any(parameter.dtype == torch.bfloat16 for parameter in parameters)
    return not halves or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear:
    """The outputs of linear layers (weights (O, I) and biases (O), of all or none) for the same input (..., I)."""

    def __init__(self, layers: Sequence[Sequence[torch.Tensor]]) -> None:
        self._layers = layers
        self._sizes = [len(weight) for weight, *_ in layers]
        self._packed: tuple[torch.Tensor, torch.Tensor | None] | None = None
        self.__name__ = type(self).__name__  # torch.fx wants one of whatever it calls

    def forget_weights(self) -> None:
        """Pack the weights again before the next product."""
        self._packed = None

    def __call__(self, states: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        """(..., O), or a tuple of them where there are several layers; to that of one a residual may be added."""
        weight, bias = self._packed = self._packed or _packed(self._layers)
        if residual is not None:
            return _product_with(states, residual, weight, bias, "add")
        outputs = _product(states, weight, bias, "none", [], "")
        return outputs if len(self._sizes) == 1 else torch.split_with_sizes(outputs, self._sizes, -1)


class PackedGate:
    """silu(gate(x)) * up(x) for two linear layers of one shape, with weights and maybe biases as above."""

    def __init__(self, gate: Sequence[torch.Tensor], up: Sequence[torch.Tensor]) -> None:
        self._gate, self._up = gate, up
        self._packed: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self.__name__ = type(self).__name__

    def forget_weights(self) -> None:
        """Pack the weights again before the next product."""
        self._packed = []

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """(..., I) to (..., O)"""
        gate, up = self._packed = self._packed or [_packed([self._gate]), _packed([self._up])]
        activated = _product(states, *gate, "swish", [], "")
        product: torch.Tensor = _product_with(states, activated, *up, "mul")
        return product


_product = torch.ops.mkldnn._linear_pointwise.default
_product_with = torch.ops.mkldnn._linear_pointwise.binary


def _packed(layers: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor | None]:
    weights, *biases = ([part.detach() for part in parts] for parts in zip(*layers, strict=True))
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    return torch.ops.mkldnn._reorder_linear_weight(weight), torch.cat(biases[0]) if biases else None
