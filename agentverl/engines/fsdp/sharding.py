"""Cut a model over ranks with FSDP2, from the one copy that rank 0 has loaded."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from agentverl.engines.fsdp.ranks import Ranks
from agentverl.engines.settings import ShardingSettings


def shard(
    root: nn.Module, model: PreTrainedModel, ranks: Ranks, dtype: torch.dtype, settings: ShardingSettings
) -> None:
    """Cut the parameters of `model`, which `root` holds: layer by layer, then what is left, with the root.

    Rank 0 brings the weights; on other ranks they are on the meta device before, and no rank's device ever holds more
    whole weights than those of a layer, or of the embeddings. Gradients are summed over the ranks, not averaged, as
    every token brings its weight in the whole batch.
    """
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=ranks.device.type != "cpu") if settings.offload_policy else OffloadPolicy()
    for buffer in root.buffers():
        _take_from_first(buffer, ranks)
    for unit in [*_layers(model), root]:
        for parameter in unit.parameters():
            if not isinstance(parameter, DTensor):
                _take_from_first(parameter, ranks)
        fully_shard(
            unit,
            mesh=ranks.mesh,
            reshard_after_forward=settings.reshard_after_forward and unit is not root,
            mp_policy=precision,
            offload_policy=offload,
        )
    for part in sharded_modules(root):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def sum_gradients_over_ranks(root: nn.Module, settings: ShardingSettings, *, last: bool) -> None:
    """Whether the coming backward pass sums gradients over the ranks; that of a batch's last micro-batch must."""
    assert isinstance(root, FSDPModule)
    root.set_requires_gradient_sync(last or not settings.use_no_sync_for_gradient_accumulation)


def reshard(root: nn.Module) -> None:
    """Drop what is still gathered after a forward pass."""
    for module in sharded_modules(root):
        module.reshard()


def sharded_modules(root: nn.Module) -> Iterator[FSDPModule]:
    """The modules whose parameters are gathered together."""
    return (module for module in root.modules() if isinstance(module, FSDPModule))


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks of the model, by the class names that transformers keeps for that purpose."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


@torch.no_grad()
def _take_from_first(tensor: torch.Tensor, ranks: Ranks) -> None:
    """Make it what it is on rank 0, on this rank's device; every reference to it stays valid."""
    if tensor.is_meta:
        filled = torch.empty_like(tensor, device=ranks.device)
        if isinstance(tensor, nn.Parameter):
            filled = nn.Parameter(filled, requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, filled)
    else:
        tensor.data = tensor.data.to(ranks.device)
    ranks.broadcast(tensor.data)
