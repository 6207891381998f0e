"""The weights of a model that is cut over ranks: each rank holds its share, FSDP gathers and rounds them for a pass."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from agentverl.engines.fsdp.ranks import Ranks


class ShardedWeights:
    """The parameters of a model by name, each once, as DTensors; tied ones have one name."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks, dtype: torch.dtype) -> None:
        self._ranks, self._dtype = ranks, dtype
        self.masters: dict[str, nn.Parameter] = dict(model.named_parameters())

    @torch.no_grad()
    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, whole, as the forward pass uses it; all ranks iterate together."""
        for name, parameter in self.masters.items():
            dtype = self._dtype if parameter.is_floating_point() else parameter.dtype
            yield name, self._gathered(parameter.detach().to(dtype))

    @torch.no_grad()
    def whole(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, whole, as the optimiser updates it; all ranks iterate together."""
        for name, parameter in self.masters.items():
            yield name, self._gathered(parameter.detach())

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.to(self._ranks.device)
        assert isinstance(there, DTensor)
        return there.full_tensor()

    def publish(self) -> None:
        """The next pass gathers the updated weights by itself."""

    def to(self, device: torch.device | str) -> None:
        """They are the model's own parameters, and move with it."""
