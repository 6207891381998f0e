"""`metrics.jsonl` in the run's folder: all metrics, a line a step."""

from collections.abc import Mapping
from pathlib import Path

from agentverl.errors import RunFolderError
from agentverl.tracking.base import Logger, Metrics, RunInfo
from agentverl.tracking.json_lines import JsonLines, read_json_lines

METRICS_FILE = "metrics.jsonl"


class JsonlLogger(Logger):
    """Appends `{"step": ..., "data": {...}}`, verl's form."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        try:
            self._lines = JsonLines(run.folder / METRICS_FILE)
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(f"{run.folder / METRICS_FILE} cannot be written: {reason}") from error

    def log(self, metrics: Metrics, step: int) -> None:
        self._lines.append({"step": step, "data": dict(metrics)})

    def close(self) -> None:
        self._lines.close()


def read_metrics(run_folder: Path) -> dict[int, Mapping[str, float]]:
    """Metrics by step, in order of steps; parts of a step joined, and of what was logged twice the later one.

    Raises:
        RunFolderError: the folder has no metrics.
    """
    path = run_folder / METRICS_FILE
    if not path.is_file():
        raise RunFolderError(f"{run_folder} has no {METRICS_FILE}; was trainer.logger without `file`?")
    steps: dict[int, dict[str, float]] = {}
    for _, record in read_json_lines(path):
        steps.setdefault(record["step"], {}).update(record["data"])
    return dict(sorted(steps.items()))
