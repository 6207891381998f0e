"""Where metrics go: the logger that a plugin subclasses, and `Tracking`, which feeds all loggers of a run."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat

from rich.console import RenderableType

from agentverl import plugins
from agentverl.errors import BadInputError, PluginError

logger = logging.getLogger(__name__)

Metrics = Mapping[str, float]
"""verl's names (`critic/score/mean`, `val-core/...`) to numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a logger may know of the run."""

    folder: Path
    project_name: str = "agentverl"
    experiment_name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    """The effective configuration as plain data."""
    total_steps: int | None = None
    first_step: int = 0
    """Steps that were done before, in a resumed run."""
    debug: bool = False
    """No live display."""


class Logger(ABC):
    """Subclass to send metrics somewhere; made once a run, in the controller.

    Raise a BadInputError from the constructor where the place cannot be used; what fails later is warned about once.
    """

    def __init__(self, run: RunInfo) -> None:
        self.run = run

    @classmethod
    def require(cls) -> None:
        """Raise a PluginError where what the logger needs is not installed; asked before anything starts."""
        return None

    @abstractmethod
    def log(self, metrics: Metrics, step: int) -> None:
        """Take the metrics of a step; a step may be logged in several parts."""

    def show(self, renderable: RenderableType) -> None:
        """Show something to the person who watches, where there is one."""
        return None

    def close(self) -> None:
        """Write what is left; called once."""
        return None


class Tracking:
    """All loggers of a run, under the names of `trainer.logger`; a context manager.

    Raises:
        PluginError: a logger is not found, does not import, or is no Logger.
    """

    def __init__(self, names: Iterable[str], run: RunInfo) -> None:
        self.loggers: dict[str, Logger] = {}
        self._broken: set[str] = set()
        try:
            for name in dict.fromkeys(names):
                self.loggers[name] = _made(name, run)
        except BaseException:
            self.close()
            raise

    def log(self, metrics: Mapping[str, SupportsFloat], step: int) -> None:
        """Send the metrics of a step to all loggers; numpy and torch scalars become floats."""
        numbers = {key: float(value) for key, value in metrics.items()}
        self._each("log", lambda one: one.log(numbers, step))

    def show(self, renderable: RenderableType) -> None:
        """Show something to whoever watches."""
        self._each("show", lambda one: one.show(renderable))

    def close(self) -> None:
        """Close all loggers; a second call does nothing."""
        self._each("close", lambda one: one.close())
        self.loggers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each(self, what: str, call: Callable[[Logger], None]) -> None:
        for name, one in self.loggers.items():
            try:
                call(one)
            except Exception as error:  # a place for metrics that fails must not end the training
                if name not in self._broken:
                    logger.warning("logger %s failed to %s, training goes on: %s", name, what, error)
                self._broken.add(name)


def find_logger(name: str) -> type[Logger]:
    """The logger of that name.

    Raises:
        PluginError: it is not found, does not import, is no Logger, or needs what is not installed.
    """
    found = plugins.find("loggers", name)
    if not isinstance(found, type) or not issubclass(found, Logger):
        raise PluginError(f"logger {name!r} is no subclass of agentverl.tracking.base.Logger")
    found.require()
    return found


def _made(name: str, run: RunInfo) -> Logger:
    found = find_logger(name)
    try:
        return found(run)
    except BadInputError:
        raise
    except Exception as error:  # a logger may raise anything while it starts
        raise PluginError(f"logger {name!r} does not start: {type(error).__name__}: {error}") from error
