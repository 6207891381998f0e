"""Moving rows between packed and padded tensors with gathers both ways, as scattering with sums is slow on CPUs."""

from typing import Any

import torch


def pad_rows(packed: torch.Tensor, pad: torch.Tensor, unpad: torch.Tensor) -> torch.Tensor:
    """(n, ...) packed rows to (m, ...): row i is packed row `pad[i]`; `unpad` (n) says where each packed row stands.

    Rows beyond those in `unpad` are filling: nothing that is kept may depend on them.
    """
    return _applied(_PadRows, packed, pad, unpad)


def take_rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows (m, ...) of (n, ...) by number, none of them twice."""
    return _applied(_TakeRows, tensor, rows)


def _applied(function: Any, *tensors: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = function.apply(*tensors)
    return output


class _PadRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: torch.Tensor, pad: torch.Tensor, unpad: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(unpad)
        return packed.index_select(0, pad)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (unpad,) = ctx.saved_tensors
        return gradients[0].index_select(0, unpad), None, None


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.count = tensor.shape[0]
        return tensor.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (rows,) = ctx.saved_tensors
        gradient = gradients[0]
        whole = gradient.new_zeros(ctx.count, *gradient.shape[1:])
        return whole.index_copy_(0, rows, gradient), None
