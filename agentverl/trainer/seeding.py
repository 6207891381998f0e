"""Seeds the process's shared random generators, which plugins may draw from."""

import random

import numpy as np
import torch

from agentverl.settings.seeds import derive_seed


def seed_process(*parts: object) -> None:
    """Seed Python's, numpy's and torch's generators from a hash of `parts`.

    Done at the start and anew for each step, so that a resumed run draws what the run that was not interrupted draws.
    """
    seed = derive_seed(*parts, "process")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
