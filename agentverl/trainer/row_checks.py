"""What the rows of a run ask for, held against what there is, before anything starts."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentverl.agent_loops.loading import AgentLoops, AgentLoopSpec
from agentverl.environments.loading import EnvironmentSpec, check_task
from agentverl.errors import DatasetError, SettingsError
from agentverl.rewards.base import RewardManager
from agentverl.rewards.data_sources import compares_with_truth
from agentverl.settings.reward import ComponentSettings
from agentverl.settings.root import Settings
from agentverl.tools.toolset import Toolset
from agentverl.trainer.problems import Problems

Row = Mapping[str, Any]
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Survey:
    """The different things that rows ask for, each with a row that does."""

    agent_loops: dict[str, Row] = field(default_factory=dict)
    tasks: dict[tuple[str, frozenset[str]], Row] = field(default_factory=dict)
    """By environment and the names of its `environment_kwargs`."""
    tools: dict[tuple[str, frozenset[str]], Row] = field(default_factory=dict)
    """By tool and the names of its `tools_kwargs`."""
    data_sources: dict[tuple[str, str], Row] = field(default_factory=dict)
    """By data source and environment; `""` where there is none."""
    without_truth: dict[str, Row] = field(default_factory=dict)
    """By data source: rows that no answer can be compared with."""

    def note(self, row: Row, loop: str, environment: str) -> None:
        """Take in one row; the names are those of the configuration where the row has none."""
        self.agent_loops.setdefault(row.get("agent_name") or loop, row)
        environment = row.get("environment") or environment
        if environment:
            self.tasks.setdefault((environment, frozenset(row.get("environment_kwargs") or ())), row)
        for tool, given in (row.get("tools_kwargs") or {}).items():
            self.tools.setdefault((tool, frozenset(given if isinstance(given, Mapping) else ())), row)
        source = row.get("data_source", "")
        self.data_sources.setdefault((source, environment), row)
        if (row.get("reward_model") or {}).get("ground_truth") is None:
            self.without_truth.setdefault(source, row)


class RowChecks:
    """Checks the rows of all splits together; what is wrong goes to `problems`."""

    def __init__(self, settings: Settings, problems: Problems) -> None:
        self._settings = settings
        self._agent = settings.actor_rollout_ref.rollout.agent
        self._problems = problems
        self._survey = _Survey()

    def read(self, rows: Sequence[Row]) -> None:
        """Look at every row of a split once."""
        loop = self._settings.actor_rollout_ref.rollout.agent_loop
        for row in rows:
            self._survey.note(row, loop, self._agent.environment or "")

    def agent_loops(self, loops: AgentLoops, toolset: Toolset) -> None:
        """Every agent loop is found, and one of them calls the tools that are configured."""
        names = self._survey.agent_loops
        found = [self._problems.attempt(partial(loops.find, name)) for name in names]
        known = [spec for spec in found if spec is not None]
        if toolset.specs and known and len(known) == len(names):
            self._problems.attempt(partial(_refuse_unused_tools, known))

    def environments(self) -> dict[str, bool]:
        """Every environment is found and can begin its rows' tasks; by name, whether it scores."""
        scores = {"": False}
        for (name, _), row in self._survey.tasks.items():
            spec = self._problems.attempt(partial(self._environment, name))
            if spec is not None:
                scores[name] = spec.environment_class.scores()
                self._problems.attempt(partial(_check_task, spec, row))
        return scores

    def tools(self, toolset: Toolset) -> None:
        """Tools can be opened with the rows' `tools_kwargs`; a warning names tools that the run does not have."""
        unknown = sorted({tool for tool, _ in self._survey.tools if tool not in toolset.specs})
        if unknown:
            _logger.warning(
                "tools_kwargs of the rows are for tools that this run does not have: %s", ", ".join(unknown)
            )
        for row in self._survey.tools.values():
            self._problems.attempt(partial(toolset.check_task, row["tools_kwargs"]))
        for component in self._settings.reward.components:
            if component.kind == "tool" and isinstance(component.settings.get("names"), list):
                _warn_of_unknown_tools(component, toolset)

    def rewards(self, reward: RewardManager, scores: Mapping[str, bool]) -> None:
        """Every data source that a function scores has one, and a ground truth in each row."""
        rewards = self._settings.reward
        if rewards.custom_reward_function.path is not None:
            return
        if reward.asks_environment:
            for _, environment in self._survey.data_sources:
                if not scores.get(environment, True):
                    self._problems.attempt(partial(_refuse_silent_environment, environment))
        by_function = rewards.score_from == "function" or bool(rewards.components)
        judged = {
            source
            for source, environment in self._survey.data_sources
            if by_function or not scores.get(environment, True)
        }
        self._problems.attempt(partial(reward.check, judged))
        for source in sorted(judged & set(self._survey.without_truth)):
            self._problems.attempt(partial(_refuse_missing_truth, source, self._survey.without_truth[source]))

    def _environment(self, name: str) -> EnvironmentSpec:
        # The configuration's settings are those of its own environment; a row's other one has only defaults.
        return EnvironmentSpec.find(name, self._agent.environment_kwargs if name == self._agent.environment else None)


def _check_task(spec: EnvironmentSpec, row: Row) -> None:
    try:
        check_task(spec.environment_class, row.get("environment_kwargs") or {})
    except DatasetError as error:
        if row.get("environment"):
            raise
        raise DatasetError(
            f"{error}; rows that name no environment are played in agent.environment={spec.name}, which "
            "agent.environment=null takes away"
        ) from error


def _refuse_unused_tools(loops: Sequence[AgentLoopSpec]) -> None:
    if not any(spec.loop_class.calls_tools for spec in loops):
        names = ", ".join(spec.name for spec in loops)
        raise SettingsError(
            f"tools are configured (multi_turn.tool_config_path, multi_turn.function_tool_path), but {names} calls "
            "none and no row names another agent loop; set agent.default_agent_loop=tool_agent, or no tools"
        )


def _warn_of_unknown_tools(component: ComponentSettings, toolset: Toolset) -> None:
    for name in component.settings["names"]:
        if name not in toolset.specs:
            near = difflib.get_close_matches(str(name), toolset.specs, n=1)
            _logger.warning(
                "reward.components: %s: this run has no tool %r%s; only an agent loop can give rewards of that name",
                component.name,
                name,
                f" (nearest: {near[0]})" if near else "",
            )


def _refuse_silent_environment(environment: str) -> None:
    who = f"environment {environment!r}, which defines no `score`" if environment else "no environment"
    raise SettingsError(
        f"reward.components: a component of kind environment needs an environment's score, but rows have {who}; set "
        "agent.environment to one that scores, or leave the component out"
    )


def _refuse_missing_truth(source: str, row: Row) -> None:
    if compares_with_truth(source):
        raise DatasetError(
            f"row {row.get('index', 0)} of data_source {source!r} has no reward_model.ground_truth, with which its "
            "reward function compares answers; add it, or set reward.custom_reward_function.path"
        )
