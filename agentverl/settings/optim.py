"""`*.optim.*`: AdamW and its learning rate over time."""

from typing import Annotated, Literal

from pydantic import Field

from agentverl.settings.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class OptimSettings(Section):
    """AdamW and its schedule; steps are optimiser steps."""

    lr: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    lr_scheduler_type: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """What follows the warm-up."""
    lr_warmup_steps: int = Field(-1, ge=-1)
    """Steps from 0 to `lr`; -1 means `lr_warmup_steps_ratio` decides."""
    lr_warmup_steps_ratio: Share = 0.0
    """Share of all steps that is warm-up."""
    min_lr_ratio: Share = 0.0
    """Share of `lr` at which a decay ends."""
    num_cycles: float = Field(0.5, gt=0)
    """Waves of the cosine; 0.5 falls once to the minimum."""
    stable_ratio: Share = 0.9
    """Share of the steps after the warm-up that `wsd` stays at `lr`."""
