"""Which launcher runs: the only place that knows."""

from collections.abc import Callable

from agentverl.errors import BadInputError
from agentverl.single_controller.local import LocalWorkerGroup
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup

_LAUNCHERS: dict[str, Callable[[WorkerClass, int], WorkerGroup]] = {"local": LocalWorkerGroup}


def start_workers(launcher: str, worker_class: WorkerClass, num_workers: int = 1) -> WorkerGroup:
    """Start the workers of one role.

    Args:
        launcher: `trainer.launcher`; `local` runs them in this process.

    Raises:
        BadInputError: a launcher that does not exist.
        WorkerClassError: a worker class that cannot work.
        WorkerError: a worker that raised while it was made.
    """
    if launcher not in _LAUNCHERS:
        raise BadInputError(f"trainer.launcher={launcher!r} does not exist; known: {', '.join(_LAUNCHERS)}")
    return _LAUNCHERS[launcher](worker_class, num_workers)
