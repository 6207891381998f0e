"""`agentverl rollout`: trajectories of a model, without training."""

from rich.console import Console
from rich.progress import Progress

from agentverl.settings.root import Settings
from agentverl.trainer.evaluate import beside
from agentverl.trainer.preparation import prepare
from agentverl.trainer.run_folder import RunFolder
from agentverl.trainer.session import Session


def rollout(settings: Settings, console: Console | None = None) -> None:
    """Roll out every training prompt once, `rollout.n` samples each, into the journal of a new folder.

    Raises:
        BadInputError: whatever keeps it from starting, together.
        TrainingStoppedError: too many trajectories failed.
    """
    console = console or Console()
    prepared = prepare(settings, splits=("train",))
    run = RunFolder.begin(beside(settings, "rollout"), settings)
    with run.starting():
        session = Session(settings, prepared, run.path)
    scores: list[float] = []
    failed = 0
    rows = [{**row, "uid": f"0-{number}"} for number, row in enumerate(prepared.train_rows)]
    size = settings.data.train_batch_size
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("rolling out", total=len(rows))
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                session.rollouts.submit(part, settings.actor_rollout_ref.rollout.n)
                groups = session.rollouts.next_groups(len(part))
                scores += [result.score or 0.0 for group in groups for result in group.results]
                failed += sum(len(group.failures) for group in groups)
                progress.advance(task, len(part))
    finally:
        session.close()
        run.close()
    mean = sum(scores) / len(scores) if scores else 0.0
    run.write_summary({"trajectories": len(scores), "failed": failed, "mean_score": mean})
    console.print(f"{len(scores)} trajectories, {failed} failed, mean score {mean:.3f}: agentverl show {run.path}")
