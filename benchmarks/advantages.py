"""Time of the advantage estimators, against torch.sum, loops over columns and verl 0.9.1; the last line is JSON.

Usage: python benchmarks/advantages.py [--rounds 5] [--rows 1024] [--columns 4096] [--threads 2]

A batch of float32 rewards and masks, in groups of eight, each row of several turns. Three kinds of cases:

- estimators of one number a row, not whitened: at most three times one torch.sum over the rewards and the mask
- those that recur over time: at least three times faster than a loop over columns that computes the same recurrence
- all that verl has: not slower than there

Both sides are processes that work in turns, with cold caches; a turn gives the shortest of three calls of each
estimator, a case is the ratio of the medians over turns. Both keep the memory that they free, as the processes of
agentverl do: else pages that the kernel clears would be most of what is measured. The first time, verl is installed
without its dependencies in an environment of its own (.venvs/verl).
"""

import argparse
import os
import sys
from pathlib import Path

from comparison import Case, Side, report
from peers import verl_python

SIDE = Path(__file__).parent / "sides" / "estimators.py"
KEPT_BYTES = str(2**30)
KEEP_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
    "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
}
BY_ROW = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg")
ALONG_TIME = {
    "gae": "loop gae",
    "turn_gae": "loop gae",
    "reinforce_plus_plus": "loop discounted",
    "turn_grpo": "loop discounted",
    "gigpo": "loop discounted",
    "remax": "loop summed",
    "optimal_token_baseline": "loop summed twice",
    "tir_optimal_token_baseline": "loop summed twice",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 5), ("rows", 1024), ("columns", 4096), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    os.environ.update(KEEP_FREED_MEMORY)
    shape = (str(asked.rows), str(asked.columns))
    ours = Side("agentverl", Path(sys.executable), SIDE, "agentverl", *shape, threads=asked.threads)
    verl = Side("verl", verl_python("verl.trainer.ppo.core_algos"), SIDE, "verl", *shape, threads=asked.threads)
    for side in (ours, verl):
        side.turn(warm_up=True)
    for _ in range(asked.rounds):
        ours.turn()
        verl.turn()
    for side in (ours, verl):
        side.end()
    report(_cases(ours, verl))


def _cases(ours: Side, verl: Side) -> list[Case]:
    def case(name: str, other: Side, what: str, label: str, required: float) -> Case:
        times = (1000 * ours.median(name), 1000 * other.median(what))
        return Case.of_costs(f"{name} against {label}", *times, "ms", required)

    return [
        *(case(name, ours, "torch.sum", "torch.sum", round(1 / 3, 4)) for name in BY_ROW),
        *(case(name, ours, loop, "a loop over columns", 3.0) for name, loop in ALONG_TIME.items()),
        *(case(name, verl, name, "verl 0.9.1", 1.0) for name in verl.turns[0]),
    ]


if __name__ == "__main__":
    main()
