"""Gradients of one weight, added up in its type as soon as they are there, in an order that no timing changes."""

import threading
from functools import partial
from typing import Any

import torch


class GradientSum:
    """Takes gradients from parameters, which may be in threads that each go through a part of a pass."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        self._weight = weight
        self._lock = threading.Lock()
        self._next = 0
        self._early: dict[int, torch.Tensor] = {}

    def take_from(self, parameter: Any, part: int | None = None) -> None:
        """Take each gradient of a parameter; with a number of a part, after those of the parts before it."""
        parameter.register_post_accumulate_grad_hook(partial(self._take, part))

    def end_pass(self) -> None:
        """Add what waits for parts that did not use the weight."""
        with self._lock:
            for part in sorted(self._early):
                self._add(self._early.pop(part))
            self._next = 0

    def _take(self, part: int | None, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        with self._lock:
            if part is None:
                self._add(gradient)
                return
            self._early[part] = gradient
            while self._next in self._early:
                self._add(self._early.pop(self._next))
                self._next += 1

    def _add(self, gradient: torch.Tensor) -> None:
        if self._weight.grad is None:
            self._weight.grad = gradient.to(self._weight.dtype)
        else:
            self._weight.grad.add_(gradient)
