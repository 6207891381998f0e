"""`agentverl eval`: held-out success of a model, by the agent loop that it is trained with."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentverl.settings.root import Settings
from agentverl.trainer.preparation import prepare
from agentverl.trainer.run_folder import RunFolder
from agentverl.trainer.session import Session
from agentverl.trainer.summary import wilson_interval
from agentverl.trainer.validation import ValidationOutcome, validate


def evaluate(settings: Settings, console: Console | None = None) -> ValidationOutcome:
    """Validate the model of `model.path`, print the result, and keep trajectories and `summary.json` in a new folder.

    Raises:
        BadInputError: whatever keeps it from starting, together.
    """
    console = console or Console()
    prepared = prepare(settings, splits=("val",))
    run = RunFolder.begin(beside(settings, "eval"), settings)
    with run.starting():
        session = Session(settings, prepared, run.path)
    try:
        session.open_tracking(total_steps=None, first_step=0)
        outcome = validate(
            session.rollouts, prepared.validation_rows, settings.actor_rollout_ref.rollout.val_kwargs.n, 0
        )
        session.record_validation(0, outcome)
        session.tracking.log(outcome.metrics, step=0)
    finally:
        session.close()
        run.close()
    count = len(outcome.results)
    low, high = wilson_interval(outcome.success, count)
    run.write_summary(
        {
            "success": outcome.success,
            "wilson_interval_95": [low, high],
            "tool_call_rate": outcome.tool_call_rate,
            "trajectories": count,
        }
    )
    console.print(_table(f"Held-out tasks, {settings.actor_rollout_ref.model.path}", outcome, low, high))
    console.print(f"Trajectories: agentverl show {run.path}")
    return outcome


def beside(settings: Settings, what: str) -> Path:
    """A folder beside the run's own, for what is measured without training."""
    folder = settings.trainer.run_folder
    return folder.with_name(f"{folder.name}-{what}")


def _table(title: str, outcome: ValidationOutcome, low: float, high: float) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_row("success", f"{outcome.success:.3f}")
    table.add_row("95 % interval (Wilson)", f"{low:.3f} to {high:.3f}")
    table.add_row("tool called", f"{outcome.tool_call_rate:.3f}")
    for name, value in sorted(outcome.metrics.items()):
        if name.startswith("val-core/"):
            table.add_row(name, f"{value:.3f}")
    return table
