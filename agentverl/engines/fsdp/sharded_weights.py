"""The weights of a model that is cut over ranks: each rank holds its share, FSDP gathers and rounds them for a pass."""

from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from agentverl.engines.fsdp.ranks import Ranks
from agentverl.engines.fsdp.sharding import reshard


class ShardedWeights:
    """The parameters of a model by name, each once, as DTensors; tied ones have one name."""

    def __init__(self, root: nn.Module, model: PreTrainedModel, ranks: Ranks, dtype: torch.dtype) -> None:
        self._root, self._ranks, self._dtype = root, ranks, dtype
        self.masters: dict[str, nn.Parameter] = dict(model.named_parameters())

    @torch.no_grad()
    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, whole, as the forward pass uses it; all ranks iterate together."""
        for name, parameter in self.masters.items():
            dtype = self._dtype if parameter.is_floating_point() else parameter.dtype
            rounded: torch.Tensor = parameter.detach().to(device=self._ranks.device, dtype=dtype)
            yield name, rounded.full_tensor()  # type: ignore[attr-defined]

    def publish(self) -> None:
        """The next pass gathers the updated weights by itself."""

    def to(self, device: torch.device | str) -> None:
        """Move this rank's share of weights and gradients."""
        reshard(self._root)
        self._root.to(device)
        # FSDP holds on to the shares it was made with until it is told where they are.
