"""Draw each component's mean over the steps of a run, in training and on held-out tasks."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from agentverl.tracking.jsonl import read_metrics

COMPONENTS = ("correct", "form", "courtesy", "brief")


def draw(run: Path, picture: Path) -> None:
    """One line a component; dots are held-out tasks."""
    steps = read_metrics(run)
    figure, axes = plt.subplots(figsize=(7, 4))
    for number, name in enumerate(COMPONENTS):
        colour = f"C{number}"
        trained = _points(steps, f"reward/{name}/mean")
        held_out = _points(steps, f"val-aux/arithmetic/{name}/mean@1")
        axes.plot(list(trained), list(trained.values()), color=colour, label=name)
        axes.plot(list(held_out), list(held_out.values()), "o", color=colour)
    axes.set(xlabel="step", ylabel="mean of the component", ylim=(-0.03, 1.03))
    axes.legend(loc="lower right", title="line: training, dots: held out")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def _points(steps: Mapping[int, Mapping[str, Any]], key: str) -> dict[int, float]:
    return {step: row[key] for step, row in steps.items() if key in row}


def main() -> None:
    """Draw the run named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    draw(arguments.run, arguments.picture)


if __name__ == "__main__":
    main()
