"""What an environment is: where tasks come from, what the policy acts on, and how it is scored; one a trajectory."""

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from agentverl.messages import Message, text_of
from agentverl.tools.context import PluginContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `fields` are the keyword arguments of `reset`: plain data, such as JSON holds."""

    fields: dict[str, Any] = field(default_factory=dict)
    prompt: list[Message] = field(default_factory=list)
    """The first messages, as far as they are known before `reset`."""
    ground_truth: Any = None
    data_source: str = ""
    """Groups the validation metrics; the environment's name (without its file or module) when empty."""


@dataclass(slots=True, kw_only=True)
class Observation:
    """What the policy sees: messages, and the tools on offer."""

    messages: list[Message] = field(default_factory=list)
    tools: list[str | dict[str, Any]] | None = None
    """Names of configured tools, or schemas that `step` answers; None offers all configured tools."""
    state_key: str | None = None
    """Names the state that is seen, for estimators that compare turns in the same state; None: its text does."""


@dataclass(slots=True, kw_only=True)
class Step:
    """What an action led to. An empty observation with `done` left false lets the loop decide what comes next."""

    observation: Observation = field(default_factory=Observation)
    reward: float | None = None
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class EnvironmentContext(PluginContext):
    """What an environment may use of its trajectory."""

    messages: Sequence[Message] = ()
    """The conversation as the policy saw it; complete when `score` is called."""

    @property
    def final_answer(self) -> str:
        """The text of the closing assistant message; empty where the episode ended on a call or an observation."""
        last = self.messages[-1] if self.messages else {}
        return text_of(last) if last.get("role") == "assistant" and not last.get("tool_calls") else ""


class EnvironmentSettings(BaseModel):
    """The keys of `agent.environment_kwargs`; an environment's own `Settings` derives from it."""

    model_config = ConfigDict(extra="forbid")


class Environment(ABC):
    """Subclass to give the policy a world; single use, one instance a trajectory.

    Write `tasks` to make problems instead of reading files, `reset` to begin one, `step` where the world answers
    actions, and `score` to judge the episode; leave out what you do not need. What fails without the policy's doing is
    raised as an InfrastructureError with boundary "environment".
    """

    Settings: ClassVar[type[EnvironmentSettings]] = EnvironmentSettings

    context: EnvironmentContext
    """Set before `reset`."""

    def __init__(self, settings: Any = None, resources: Any = None) -> None:
        self.settings = settings
        self.resources = resources

    @classmethod
    def tasks(cls, split: str, size: int, seed: int, **settings: Any) -> Sequence[Task]:
        """`size` problems of a split ("train" or "val"), the same for the same arguments.

        Raises:
            SettingsError: the split is unknown or holds fewer problems.
            NotImplementedError: an environment without tasks of its own, see `makes_tasks`.
        """
        raise cls._not_written("tasks", "give data files, or write it")

    @classmethod
    async def setup(cls, settings: Any) -> Any:
        """Make what all trajectories of a process share; the result is `self.resources`."""
        return None

    @classmethod
    async def teardown(cls, resources: Any) -> None:
        """Give back what `setup` made."""
        return None

    async def reset(self, context: EnvironmentContext, *args: Any, **task: Any) -> Observation:
        """Begin the task; messages of the observation, where it has any, replace the row's `raw_prompt`."""
        return Observation()

    async def step(self, action: Message) -> Step:
        """Answer an action: an assistant message, with the tool calls that no tool takes or plain text.

        Raises:
            NotImplementedError: a world that answers nothing, see `steps`.
        """
        raise self._not_written("step", "send actions only where steps() is true, or write it")

    async def score(self) -> float | dict[str, float]:
        """Judge the episode: a number, or a dict with `score` and further components.

        Raises:
            NotImplementedError: a world that judges nothing, see `scores`.
        """
        raise self._not_written("score", "let a reward function judge the episode, or write it")

    async def close(self) -> None:
        """End the trajectory; runs always, also after a deadline, a cancellation or a crash of the loop."""
        return None

    @classmethod
    def _not_written(cls, method: str, remedy: str) -> NotImplementedError:
        return NotImplementedError(f"{cls.__name__} has no {method} of its own; {remedy}")

    @classmethod
    def makes_tasks(cls) -> bool:
        """Whether `tasks` is written."""
        return getattr(cls.tasks, "__func__", cls.tasks) is not getattr(Environment.tasks, "__func__", None)

    @classmethod
    def steps(cls) -> bool:
        """Whether `step` is written: only then does an agent loop send actions."""
        return cls.step is not Environment.step

    @classmethod
    def scores(cls) -> bool:
        """Whether `score` is written: otherwise the reward function judges."""
        return cls.score is not Environment.score
