"""New weights: a complete set is copied aside first, then put in place at once."""

from collections.abc import Iterable

import torch

from agentverl.errors import BadInputError
from agentverl.rollout.hf.model import ServedModel

_SHOWN = 3


def stage(model: ServedModel, weights: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copies of a complete set of weights, in the model's dtype and on its device.

    Buffers of the model may be among the weights; parameters must be.

    Raises:
        BadInputError: a name is unknown or missing, or a shape differs.
    """
    targets: dict[str, torch.Tensor] = {**model.buffers(), **model.parameters()}
    staged: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        target = targets.get(name)
        if target is None:
            raise BadInputError(
                f"new weights hold {name!r}, which the served model does not have; it keeps the old ones"
            )
        if tensor.shape != target.shape:
            raise BadInputError(
                f"new weights hold {name!r} of shape {tuple(tensor.shape)}, expected {tuple(target.shape)}; "
                "the old ones keep serving"
            )
        memory = model.spare.pop(name, None)
        if memory is None:
            memory = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        with torch.inference_mode():
            staged[name] = memory.copy_(tensor.detach())
    _require_complete(model, staged)
    return staged


def _require_complete(model: ServedModel, staged: dict[str, torch.Tensor]) -> None:
    names_of: dict[int, list[str]] = {}
    for name, parameter in model.parameters().items():
        names_of.setdefault(id(parameter), []).append(name)
    missing = [names[0] for names in names_of.values() if not staged.keys() & set(names)]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise BadInputError(
            f"new weights lack {', '.join(missing[:_SHOWN])}{more}: expected a complete set; the old ones keep serving"
        )


def apply(model: ServedModel, staged: dict[str, torch.Tensor]) -> None:
    """Put a staged set in place; it must not be used afterwards.

    On a CPU the memory of the old set is kept for the next one: new pages would take longer than all the copying.
    """
    targets = {**model.buffers(), **model.parameters()}
    for name, tensor in staged.items():
        target = targets[name]
        if model.device.type == "cpu" and not _has_no_memory(target):
            model.spare[name] = target.data
        # The model may have left its device, or come back to it, since the tensor was copied.
        target.data = tensor.to(target.device)


def drop(model: ServedModel) -> None:
    """Give the memory of all parameters back; each keeps its shape, for the set that comes next."""
    model.spare.clear()
    for parameter in model.parameters().values():
        parameter.data = torch.empty((), dtype=parameter.dtype, device=model.device).expand(parameter.shape)


def are_dropped(model: ServedModel) -> bool:
    """Whether there are parameters without memory."""
    return any(_has_no_memory(parameter) for parameter in model.parameters().values())


def _has_no_memory(parameter: torch.Tensor) -> bool:
    return parameter.numel() > 1 and not any(parameter.stride())
