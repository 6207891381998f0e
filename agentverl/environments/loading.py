"""The environment of a run: found by name, its settings checked, its tasks as rows, its instances made."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from agentverl import plugins
from agentverl.environments.base import Environment, EnvironmentContext, Observation, Task
from agentverl.errors import AgentverlError, DatasetError, PluginError, SettingsError

logger = logging.getLogger(__name__)

SPLITS = ("train", "val")


class EnvironmentSpec:
    """One environment of the configuration; `setup` before the first `create`, `teardown` after the last."""

    def __init__(self, name: str, environment_class: type[Environment], settings: Any) -> None:
        self.name = name
        self.environment_class = environment_class
        self.settings = settings
        self._resources: Any = None

    @classmethod
    def find(cls, name: str, settings: Mapping[str, Any] | None = None) -> "EnvironmentSpec":
        """The environment behind an entry point, `package.module:Class` or `file.py:Class`.

        Raises:
            PluginError: it is not found, does not import, or is no Environment.
            SettingsError: `settings` are not those of the environment.
        """
        found = plugins.find("environments", name)
        if not inspect.isclass(found) or not issubclass(found, Environment):
            kind = f"class {found.__name__}" if inspect.isclass(found) else type(found).__name__
            raise PluginError(f"environment {name!r} is a {kind}; expected a subclass of agentverl.Environment")
        where = f"agent.environment_kwargs of {name!r}"
        return cls(name, found, plugins.checked_settings(found.Settings, settings or {}, where))

    def rows(self, split: str, size: int, seed: int) -> list[dict[str, Any]]:
        """Its tasks as dataset rows in verl's columns, `environment` and `environment_kwargs` among them.

        Raises:
            SettingsError: it makes no tasks, or fewer than `size` in this split.
            PluginError: its `tasks` raises something else, or gives what are no tasks.
        """
        if not self.environment_class.makes_tasks():
            remedy = "set data.train_files and data.val_files, or define the class method `tasks`"
            raise SettingsError(f"environment {self.name!r} makes no tasks; {remedy}")
        if not inspect.ismethod(self.environment_class.tasks):
            raise PluginError(f"environment {self.name!r}: tasks must be a @classmethod: `def tasks(cls, split, ...)`")
        if split not in SPLITS:
            raise SettingsError(f"there is no split {split!r}; environments have {' and '.join(SPLITS)}")
        try:
            tasks = self.environment_class.tasks(split, size, seed, **self.settings.model_dump())
            wrong = next((task for task in tasks if not isinstance(task, Task)), None)
        except AgentverlError:
            raise
        except Exception as error:  # a plugin's own code may raise anything
            reason = f"{type(error).__name__}: {error}{plugins.line_of(error)}"
            raise PluginError(f"environment {self.name!r}: tasks({split!r}, {size}, {seed}) raised {reason}") from error
        if wrong is not None:
            raise PluginError(f"environment {self.name!r}: tasks gave {type(wrong).__name__} {wrong!r}; expected Tasks")
        return [
            {
                "raw_prompt": task.prompt,
                "data_source": task.data_source or self.name.rpartition(":")[2],
                "reward_model": {"style": "rule", "ground_truth": task.ground_truth},
                "extra_info": {"index": index, "split": split},
                "environment": self.name,
                "environment_kwargs": task.fields,
            }
            for index, task in enumerate(tasks)
        ]

    async def setup(self) -> None:
        """Make what all trajectories of this process share."""
        self._resources = await self.environment_class.setup(self.settings)

    async def teardown(self) -> None:
        """Give back what `setup` made; an error is logged, for the run is over."""
        try:
            await self.environment_class.teardown(self._resources)
        except Exception:  # nothing after it may be kept from ending
            logger.warning("teardown of environment %s failed", self.name, exc_info=True)
        self._resources = None

    def create(self, context: EnvironmentContext) -> Environment:
        """A fresh instance for one trajectory; the caller resets, scores and closes it."""
        environment = self.environment_class(self.settings, self._resources)
        environment.context = context
        return environment


async def reset(environment: Environment, context: EnvironmentContext, task: Mapping[str, Any]) -> Observation:
    """Begin a row's task.

    Raises:
        DatasetError: `environment_kwargs` of the row do not fit `reset`.
        TypeError: `reset` returned no Observation.
    """
    check_task(type(environment), task)
    observation = await environment.reset(context, **task)
    if not isinstance(observation, Observation):
        name, kind = type(environment).__name__, type(observation).__name__
        raise TypeError(f"{name}.reset returned {kind}; expected an Observation")
    return observation


def check_task(environment_class: type[Environment], task: Mapping[str, Any]) -> None:
    """Hold a row's `environment_kwargs` against what `reset` takes.

    Raises:
        DatasetError: they do not fit.
    """
    try:
        inspect.signature(environment_class.reset).bind(None, None, **task)
    except TypeError as error:
        name = environment_class.__name__
        given = f"{error}; it has {', '.join(map(str, task)) or 'none'}"
        raise DatasetError(f"environment_kwargs of the row do not fit {name}.reset: {given}") from None
