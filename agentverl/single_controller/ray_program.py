"""A controller as a Ray actor, so that it runs where the cluster is and ends with whoever started it."""

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import ray

from agentverl.single_controller.outcome import Failure, Outcome, outcome_of
from agentverl.single_controller.pickling import dumps
from agentverl.single_controller.program import Program
from agentverl.single_controller.ray_call import RayCall

Result = TypeVar("Result")
_LOOK_SECONDS = 0.5
_CALLS_AT_ONCE = 4
_MORE_STARTS = 2

logger = logging.getLogger(__name__)


class TaskRunner:
    """Runs one program; its working folder is that of the process that started it, where it exists."""

    def __init__(self, pickled: bytes, folder: str) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        self._program: Program[Any] = pickle.loads(pickled)

    def run(self) -> Outcome | Failure:
        """All of the program."""
        return outcome_of(self._program.run)

    def interrupt(self) -> None:
        """Ask it to save and end."""
        self._program.interrupt()


def run_in_ray(program: Program[Result], interrupted: Callable[[], bool]) -> Result:
    """Run a program in an actor of its own and wait for its result.

    Raises:
        PluginError: the program does not pickle.
        Exception: what the program raised.
    """
    runner = _started(dumps(program, "the program"), interrupted)
    call = RayCall(runner.run.remote(), "the controller", 0, None)
    asked = False
    try:
        while not ray.wait([call.reference], timeout=_LOOK_SECONDS)[0]:
            if interrupted() and not asked:
                asked = True
                runner.interrupt.remote()
        result: Result = call.get()
        return result
    finally:
        ray.kill(runner)


def _started(pickled: bytes, interrupted: Callable[[], bool]) -> Any:
    """The actor; another one where it died before it was there: Ray sends some to a machine that was just lost."""
    for is_last in (*(False,) * _MORE_STARTS, True):
        runner = (
            ray.remote(TaskRunner)
            .options(name="task-runner", num_cpus=0, max_concurrency=_CALLS_AT_ONCE)
            .remote(pickled, str(Path.cwd()))
        )
        ready = runner.__ray_ready__.remote()
        while not ray.wait([ready], timeout=_LOOK_SECONDS)[0] and not interrupted():
            pass
        if is_last or interrupted() or not _is_lost(ready):
            break
        ray.kill(runner)
        logger.warning("the controller was sent to a machine that is lost, and is started again")
    return runner


def _is_lost(ready: Any) -> bool:
    try:
        ray.get(ready)
    except ray.exceptions.RayError as error:  # of all but a lost process whoever calls it is told
        return isinstance(error, ray.exceptions.ActorDiedError) and not error.actor_init_failed
    return False
