"""The shared generators start anew from a seed, each the same way and for each step another."""

import random

import numpy as np
import torch

from agentverl.trainer.seeding import seed_process


def drawn(*parts: object) -> tuple[float, float, float]:
    seed_process(*parts)
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_all_generators_follow_the_seed_and_the_step() -> None:
    first = drawn(0, "step", 1)
    assert drawn(0, "step", 1) == first
    for other in (drawn(0, "step", 2), drawn(1, "step", 1)):
        assert all(one != another for one, another in zip(first, other, strict=True))
