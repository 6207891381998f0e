"""One optimiser step: clip, refuse what is not finite, AdamW, the learning rate of the step."""

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from agentverl.engines.schedules import lr_factor
from agentverl.engines.settings import OptimizerSettings

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimization:
    """AdamW with a schedule over the weights of one model."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], settings: OptimizerSettings) -> None:
        self._settings = settings
        self._named, self._parameters = dict(parameters), list(parameters.values())
        self._adamw = torch.optim.AdamW(
            self._parameters,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.schedule_step = 0
        self.skipped_steps = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._settings.lr * lr_factor(self._settings, self.schedule_step)

    def zero_grad(self) -> None:
        self._adamw.zero_grad(set_to_none=True)

    def step(self) -> float:
        """Update the weights unless the gradient is not finite; returns its norm before clipping."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None], foreach=True)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if not torch.isfinite(norm):
            self.skipped_steps += 1
            self.zero_grad()
            return float(norm)
        if norm > self._settings.clip_grad:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._settings.clip_grad, norm, foreach=True)
        for group in self._adamw.param_groups:
            group["lr"] = self.lr
        self._adamw.step()
        return float(norm)

    def state(self) -> dict[str, torch.Tensor]:
        """AdamW's moments and counts of steps by name, to be saved or overwritten; `schedule_step` is beside them."""
        for parameter in self._parameters:
            if not self._adamw.state[parameter]:
                # What AdamW begins with when a parameter's first gradient comes.
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = {name: torch.zeros_like(parameter.detach()) for name in _MOMENTS}
                self._adamw.state[parameter].update(step=step, **moments)
        return {
            f"{kind}/{name}": tensor
            for name, parameter in self._named.items()
            for kind, tensor in self._adamw.state[parameter].items()
        }

    def to(self, device: torch.device | str) -> None:
        """Move the moments."""
        for state in self._adamw.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = value.to(device)
