"""What judges a trajectory: the input that a reward sees, its result, and the manager that asks for it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentverl.deadlines import Deadline
from agentverl.errors import BoundaryError
from agentverl.messages import Message, text_of
from agentverl.settings.reward import RewardSettings
from agentverl.trajectory import AgentLoopOutput

Decode = Callable[[list[int]], str]
"""Token ids to text, special tokens left out."""


@dataclass(slots=True, kw_only=True)
class RewardInput:
    """One trajectory as a reward sees it."""

    data_source: str
    solution_str: str
    """What the policy wrote, without what tools and environment printed."""
    ground_truth: Any = None
    extra_info: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    final_message: str = ""
    """The text of the closing assistant message; empty where the episode ended on a call or an observation."""
    full_text: str = ""
    """All of the response, observations included."""
    trajectory: list[AgentLoopOutput] = field(default_factory=list)
    environment: "RewardResult | None" = None
    """What the environment scored, where the manager asks for it."""

    @classmethod
    def of(cls, row: Mapping[str, Any], outputs: Sequence[AgentLoopOutput], decode: Decode) -> "RewardInput":
        """From a dataset row in verl's columns and the sequences of its trajectory."""
        judged = [output for output in outputs if output.role == "main"] or list(outputs)
        messages = judged[-1].messages if judged else []
        reward_model = row.get("reward_model") or {}
        written = policy_text(judged, decode)
        return cls(
            data_source=str(row.get("data_source", "")),
            solution_str=written,
            ground_truth=reward_model.get("ground_truth"),
            extra_info=dict(row.get("extra_info") or {}),
            messages=messages,
            final_message=final_answer(messages),
            full_text=written if _has_one_text(judged) else decode(judged[-1].response_ids),
            trajectory=list(outputs),
        )


@dataclass(slots=True, kw_only=True)
class RewardResult:
    """The score of a trajectory, its further components by name (`acc`, `pred`, ...), and the seconds it took."""

    score: float
    components: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    turn_weights: dict[str, float] = field(default_factory=dict)
    """Factors of the rewards that turns earned, by name (a tool's, `environment`, `turn`); 1 for those not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """What a manager is told of the run besides `reward.*`."""

    max_response_length: int | None = None
    """In tokens; of one sequence."""
    reward_keys: tuple[str, ...] = ()
    """Components that the advantage estimator reads from every trajectory."""


class RewardManager(ABC):
    """Subclass to decide how a score is found; one a process, used by all of its trajectories at once.

    Args:
        settings: the section `reward`.
        context: what else of the run a manager may need.
    """

    scores_groups: ClassVar[bool] = False
    """Whether `score_group` is called, once a prompt, in place of `score`."""

    def __init__(self, settings: RewardSettings, context: RewardContext | None = None) -> None:
        self.settings = settings
        self.context = context or RewardContext()

    @property
    def asks_environment(self) -> bool:
        """Whether the environment's own score is wanted in `RewardInput.environment`."""
        return False

    def check(self, data_sources: set[str]) -> None:
        """Find now what judging these data sources needs, so that what is missing shows before anything starts.

        Raises:
            BadInputError: what is missing.
        """
        return None

    @abstractmethod
    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        """The score of one trajectory.

        Raises:
            BoundaryError: no score could be had (boundary "reward"); never a silent 0.
        """

    async def score_group(self, group: Sequence[RewardInput]) -> list[RewardResult | BoundaryError]:
        """What came of each trajectory of one prompt, those that did not fail, in sample order."""
        return [await outcome(self.score(judged)) for judged in group]

    async def close(self) -> None:
        """Give back what the manager holds, such as its processes."""
        return None


async def outcome(scoring: Awaitable[RewardResult]) -> RewardResult | BoundaryError:
    """A result, or the failure in its place."""
    try:
        return await scoring
    except BoundaryError as error:
        return error


def numbers(components: Mapping[str, Any]) -> dict[str, float]:
    """The components that are finite numbers, by name; NaN is how functions say that there is none."""
    return {
        name: float(value)
        for name, value in components.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def final_answer(messages: Sequence[Message]) -> str:
    """The text of the last message where it is an assistant's and calls no tool, else nothing."""
    last = messages[-1] if messages else {}
    return text_of(last) if last.get("role") == "assistant" and not last.get("tool_calls") else ""


def _has_one_text(outputs: Sequence[AgentLoopOutput]) -> bool:
    """Whether the last response is all that the policy wrote, and nothing else is in it."""
    return not outputs or (len(outputs) == 1 and all(outputs[0].response_mask))


def policy_text(outputs: Sequence[AgentLoopOutput], decode: Decode) -> str:
    """What the policy wrote in these sequences: each run of mask-1 tokens decoded, joined by newlines."""
    texts = []
    for output in outputs:
        run: list[int] = []
        for token, mask in zip(output.response_ids, output.response_mask, strict=True):
            if mask:
                run.append(token)
            elif run:
                texts.append(decode(run))
                run = []
        if run:
            texts.append(decode(run))
    return "\n".join(texts)
