"""The terminal: a progress bar over a live table of the newest steps, or a plain line a step where none watches."""

from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from agentverl.tracking.base import Logger, Metrics, RunInfo
from agentverl.tracking.columns import COLUMNS

_SHOWN_STEPS = 10


class ConsoleLogger(Logger):
    """Live in a terminal; plain in a pipe, a dumb terminal and under `trainer.debug`."""

    def __init__(self, run: RunInfo, console: Console | None = None) -> None:
        super().__init__(run)
        self.console = console or Console()
        self._live: _LiveDisplay | None = None
        if self.console.is_terminal and not self.console.is_dumb_terminal and not run.debug:
            self._live = _LiveDisplay(self.console, run)

    def log(self, metrics: Metrics, step: int) -> None:
        if self._live is not None:
            self._live.update(metrics, step)
        else:
            self.console.print(plain_line(metrics, step, self.run.total_steps), soft_wrap=True, highlight=False)

    def show(self, renderable: RenderableType) -> None:
        self.console.print(renderable)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def plain_line(metrics: Metrics, step: int, total_steps: int | None) -> str:
    """A step in one line, in verl's form: `step:3/60 - critic/score/mean:0.512 - ...`."""
    parts = [f"step:{step}" + (f"/{total_steps}" if total_steps else "")]
    for column in COLUMNS:
        found = column.found(metrics)
        if found is not None:
            parts.append(f"{found[0]}:{format(found[1], column.form).replace(',', '')}")
    return " - ".join(parts)


class _LiveDisplay:
    """The bar and the table; parts of a step that are logged one after the other share a row."""

    def __init__(self, console: Console, run: RunInfo) -> None:
        self._rows: deque[tuple[int, dict[str, Any]]] = deque(maxlen=_SHOWN_STEPS)
        self._seen: set[str] = set()
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(run.experiment_name, total=run.total_steps, completed=run.first_step)
        self._live = Live(self._progress, console=console, refresh_per_second=2)
        self._live.start()

    def update(self, metrics: Metrics, step: int) -> None:
        if self._rows and self._rows[-1][0] == step:
            self._rows[-1][1].update(metrics)
        else:
            self._rows.append((step, dict(metrics)))
        self._seen.update(column.title for column in COLUMNS if column.found(metrics) is not None)
        self._progress.update(self._task, completed=step)
        self._live.update(Group(self._table(), self._progress))

    def stop(self) -> None:
        self._live.stop()

    def _table(self) -> Table:
        columns = [column for column in COLUMNS if column.title in self._seen]
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("step", justify="right")
        for column in columns:
            table.add_column(column.title, justify="right")
        for step, metrics in self._rows:
            table.add_row(str(step), *(column.written(metrics) for column in columns))
        return table
