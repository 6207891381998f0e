"""Learning rates over optimiser steps, as shares of the highest one."""

import math

from agentverl.engines.settings import OptimizerSettings


def lr_factor(settings: OptimizerSettings, step: int) -> float:
    """What the learning rate is multiplied by at optimiser step `step`, counted from 0.

    It rises linearly from 0 over the warm-up. Then, with p the share of the remaining steps that is over and m the
    `min_lr_ratio`: constant 1; linear 1 - (1 - m) p; cosine m + (1 - m) (1 + cos(2 pi num_cycles p)) / 2; wsd 1 up to
    `stable_ratio`, then the cosine over what is left.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return step / warmup
    if settings.lr_scheduler_type == "constant":
        return 1.0
    over = min((step - warmup) / max(1, settings.total_training_steps - warmup), 1.0)
    if settings.lr_scheduler_type == "wsd":
        over = max(0.0, over - settings.stable_ratio) / max(1e-9, 1.0 - settings.stable_ratio)
    if settings.lr_scheduler_type == "linear":
        shape = 1.0 - over
    else:
        shape = (1.0 + math.cos(2 * math.pi * settings.num_cycles * min(over, 1.0))) / 2
    return settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * shape
