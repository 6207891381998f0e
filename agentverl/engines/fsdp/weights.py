"""The weights that the optimiser updates, beside their rounded copies that the forward pass uses."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from agentverl.engines.fsdp.gradient_sum import GradientSum

_SHARED_MEMORY = Path("/dev/shm")
_log = logging.getLogger(__name__)


class Weights:
    """The parameters of a model by name, each once; tied ones have one name.

    Where the computation is in a smaller type than the weights, the model holds rounded copies: gradients are summed
    up in the weights' type as soon as they are there, and `publish` rounds the updated weights again.

    Args:
        dtype: of the computation.
        trained: whether there will be gradients.
        shared: whether the weights of the forward pass lie in shared memory, where other processes can read them, as
            far as there is enough of it.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, *, trained: bool, shared: bool = False) -> None:
        self.used = dict(model.named_parameters())
        self.masters: dict[str, torch.nn.Parameter] = {}
        self._sums: dict[str, GradientSum] = {}
        for name, parameter in self.used.items():
            parameter.requires_grad_(trained)
            self.masters[name] = parameter
            if parameter.dtype == dtype or not parameter.is_floating_point():
                continue
            if trained:
                self.masters[name] = torch.nn.Parameter(parameter.detach().clone())
                GradientSum(self.masters[name]).take_from(parameter)
            parameter.data = parameter.data.to(dtype)
        if shared:
            self._share()

    def _share(self) -> None:
        needed = sum(parameter.nbytes for parameter in self.used.values())
        free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
        if free < needed:
            _log.warning(
                "the weights take %d MiB of shared memory and %s has %d MiB free: they go through buckets, one copy "
                "more than necessary; give the container more (docker: --shm-size)",
                *(needed >> 20, _SHARED_MEMORY, free >> 20),
            )
            return
        for parameter in self.used.values():
            parameter.data.share_memory_()

    def twins(self, part: int) -> dict[int, torch.nn.Parameter]:
        """For the `id` of each parameter one over the same memory, whose gradients count as those of a part of a pass.

        They are added to the weights' in the order of the parts, whichever come first; `end_pass` waits for no more.
        """
        twins = {}
        for name, parameter in self.used.items():
            twin = twins[id(parameter)] = torch.nn.Parameter(parameter.data, parameter.requires_grad)
            if twin.requires_grad:
                self._sums.setdefault(name, GradientSum(self.masters[name])).take_from(twin, part)
        return twins

    def end_pass(self) -> None:
        """Add what was held back because a part before it has not come."""
        for gradients in self._sums.values():
            gradients.end_pass()

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, as the forward pass uses it."""
        return ((name, parameter.detach()) for name, parameter in self.used.items())

    @torch.no_grad()
    def publish(self) -> None:
        """Let the forward pass use the updated weights."""
        for name, parameter in self.used.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])

    def whole(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, as the optimiser updates it."""
        return ((name, master.detach()) for name, master in self.masters.items())

    def to(self, device: torch.device | str) -> None:
        """Move weights and gradients; parameters stay the objects that they are."""
        for parameter in {*self.used.values(), *self.masters.values()}:
            parameter.data = parameter.data.to(device)
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(device)
