"""`agentverl train`: a whole run, from its folder to the words at its end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from agentverl.errors import TrainingStoppedError
from agentverl.settings.root import Settings
from agentverl.single_controller.launcher import run_program
from agentverl.single_controller.worker_errors import WorkerDiedError, WorkerStalledError
from agentverl.trainer.interruption import Interruption
from agentverl.trainer.placement import ray_init
from agentverl.trainer.ppo import PPOTrainer
from agentverl.trainer.summary import Summary, say_goodbye


class TrainingProgram:
    """A run as a launcher starts it, in this process or in one of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._interrupted = False
        self._trainer: PPOTrainer | None = None

    def run(self) -> tuple[Summary, Path]:
        """All of the run, and its folder."""
        self._trainer = PPOTrainer(self._settings)
        self._trainer.interruption.requested = self._interrupted
        summary = self._trainer.fit()
        return summary, self._trainer.run.path

    def interrupt(self) -> None:
        """As SIGTERM does: save after the step that runs, and end."""
        self._interrupted = True
        if self._trainer is not None:
            self._trainer.interruption.requested = True


def train(settings: Settings) -> Summary:
    """Train a policy, or go on with an unfinished run of the same configuration.

    Raises:
        BadInputError: whatever keeps the run from starting, together.
        TrainingStoppedError: the run cannot go on.
        RequeueError: SIGTERM came; everything is saved.
    """
    program = TrainingProgram(settings)
    try:
        summary, folder = run_program(settings.trainer.launcher, program, ray_init(settings), _interruption())
    except (WorkerDiedError, WorkerStalledError) as error:
        raise TrainingStoppedError(f"{error}{_remedy(settings)}") from error
    quickstart = settings.trainer.experiment_name == "quickstart"
    say_goodbye(summary, folder, quickstart=quickstart, console=Console())
    return summary


def _remedy(settings: Settings) -> str:
    """What to do about a process that was lost."""
    if settings.trainer.resume_mode != "auto":
        return ""
    return ". Start the same command again: the run goes on from its last checkpoint, if it has one"


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    with Interruption() as interruption:
        yield lambda: interruption.requested
