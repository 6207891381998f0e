"""Held-out problems by hash: the problem's own text decides its split, so no two splits can share one."""

from agentverl.settings.seeds import derive_seed

HELD_OUT_SHARE = 10
"""One problem in so many is held out."""


def split_of(problem: str) -> str:
    """The split of a problem: "val" for about one in ten, "train" for the others, whatever the seed or size."""
    return "val" if derive_seed("split", problem) % HELD_OUT_SHARE == 0 else "train"
