"""The curves of a run as one picture: reward and held-out success over the steps."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from agentverl.errors import RunFolderError
from agentverl.tracking.jsonl import read_metrics

CURVES_FILE = "curves.png"

Points = tuple[list[int], list[float]]


def plot_curves(run_folder: Path, path: Path | None = None) -> Path:
    """Draw the run's curves into `curves.png` of its folder, or into `path`; the picture's path.

    Raises:
        RunFolderError: the folder has no metrics to draw, or cannot be written.
    """
    metrics = read_metrics(run_folder)
    reward = _points(metrics, "critic/score/mean") or _points(metrics, "train/loss")
    held_out = {name: points for name in _validation_names(metrics) if (points := _points(metrics, name))}
    if reward is None and not held_out:
        raise RunFolderError(f"{run_folder} has no reward and no validation to draw yet")
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if reward is not None:
        label = "reward (training)" if _points(metrics, "critic/score/mean") else "loss (training)"
        axes.plot(*reward, color="tab:blue", alpha=0.35, linewidth=1)
        marker = "o" if len(reward[0]) == 1 else None
        axes.plot(reward[0], _smoothed(reward[1]), color="tab:blue", linewidth=2, marker=marker, label=label)
    for index, (name, points) in enumerate(held_out.items(), 1):
        label = f"held-out {name.removeprefix('val-core/')}"
        axes.plot(*points, color=f"C{index}", marker="o", linewidth=2, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_xlabel("step")
    axes.set_title(run_folder.name)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center")
    path = path or run_folder / CURVES_FILE
    try:
        figure.savefig(path)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _validation_names(metrics: Mapping[int, Mapping[str, float]]) -> list[str]:
    names = {name for row in metrics.values() for name in row}
    return sorted(name for name in names if name == "val/loss" or (name.startswith("val-core/") and "/mean@" in name))


def _points(metrics: Mapping[int, Mapping[str, float]], name: str) -> Points | None:
    found = [(step, row[name]) for step, row in metrics.items() if row.get(name) is not None]
    return ([step for step, _ in found], [value for _, value in found]) if found else None


def _smoothed(values: list[float], weight: float = 0.6) -> list[float]:
    """An exponential mean without the bias of its start."""
    smoothed, mean, mass = [], 0.0, 0.0
    for value in values:
        mean, mass = weight * mean + (1 - weight) * value, weight * mass + (1 - weight)
        smoothed.append(mean / mass)
    return smoothed
