"""Side of `advantages`: each advantage estimator once a turn. Arguments: agentverl or verl, rows, columns."""

import inspect
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import column_loops
import numpy as np
import torch
from turns import serve

PROJECT, ROWS, COLUMNS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
GROUP, TURN = 8, 256
GAMMA, LAM = 0.99, 0.95
FILLER = torch.zeros(2**24)
REPEATS = 3


class Settings(dict[str, Any]):
    """Items that are attributes too."""

    __getattr__ = dict.__getitem__


def batch() -> dict[str, Any]:
    """Groups of eight rows of several turns, each 192 tokens and an observation of 64; the last token earns 0 or 1."""
    random = torch.Generator().manual_seed(0)
    shape, columns = (ROWS, COLUMNS), torch.arange(COLUMNS)
    lengths = torch.randint(COLUMNS // 2, COLUMNS + 1, (ROWS, 1), generator=random)
    mask = ((columns < lengths) & (columns % TURN < TURN * 3 // 4)).float()
    rewards = torch.zeros(shape)
    last = (mask * columns).argmax(dim=1)
    rewards[torch.arange(ROWS), last] = torch.randint(0, 2, (ROWS,), generator=random).float()
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array([f"group {row // GROUP}" for row in range(ROWS)], dtype=object),
        "values": torch.randn(shape, generator=random),
        "old_log_probs": -torch.rand(shape, generator=random),
        "sum_pi_squared": torch.rand(shape, generator=random),
        "reward_baselines": torch.rand(ROWS, generator=random),
        "turn_index": (columns // TURN).repeat(ROWS, 1),
        "state_keys": [[turn % 3 for turn in range(COLUMNS // TURN + 1)]] * ROWS,
        "config": Settings(gamma=GAMMA, norm_adv_by_std_in_grpo=True),
        "gamma": GAMMA,
        "lam": LAM,
    }


def estimators(inputs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """All that the project has, each with those of the inputs that it asks for."""
    if PROJECT == "agentverl":
        from agentverl.algorithms.registry import advantage_estimators

        known = {name: advantage_estimators.get(name) for name in advantage_estimators.names()}
    else:
        from verl.trainer.ppo import core_algos

        known = dict(core_algos.ADV_ESTIMATOR_REGISTRY)
    return {
        str(getattr(name, "value", name)): partial(
            function, **{key: inputs[key] for key in inspect.signature(function).parameters if key in inputs}
        )
        for name, function in known.items()
    }


def others(inputs: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What our estimators are measured against besides verl."""
    rewards, mask, values = (inputs[name] for name in ("token_level_rewards", "response_mask", "values"))
    return {
        "torch.sum": lambda: (rewards.sum(), mask.sum()),
        "loop gae": lambda: column_loops.gae(rewards, values, mask, GAMMA, LAM),
        "loop discounted": lambda: column_loops.discounted(rewards, mask, GAMMA),
        "loop summed": lambda: column_loops.summed(rewards),
        "loop summed twice": lambda: column_loops.summed(rewards, values),
    }


def main() -> None:
    inputs = batch()
    measured = estimators(inputs)
    if PROJECT == "agentverl":
        measured |= others(inputs)
    serve(lambda: {name: seconds(function) for name, function in measured.items()})


def seconds(function: Callable[[], Any]) -> float:
    """The shortest of a few calls where caches hold something else, as they do between stages of a step."""
    taken = []
    for _ in range(REPEATS):
        FILLER.add_(1)
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    main()
