"""What judges a trajectory: the input that a reward sees, its result, and the manager that asks for it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentverl.deadlines import Deadline
from agentverl.messages import Message, text_of
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

    @classmethod
    def of(cls, row: Mapping[str, Any], outputs: Sequence[AgentLoopOutput], decode: Decode) -> "RewardInput":
        """From a dataset row in verl's columns and the sequences of its trajectory."""
        judged = [output for output in outputs if output.role == "main"] or list(outputs)
        messages = judged[-1].messages if judged else []
        reward_model = row.get("reward_model") or {}
        return cls(
            data_source=str(row.get("data_source", "")),
            solution_str=policy_text(judged, decode),
            ground_truth=reward_model.get("ground_truth"),
            extra_info=dict(row.get("extra_info") or {}),
            messages=messages,
            final_message=final_answer(messages),
            full_text=decode(judged[-1].response_ids) if judged else "",
            trajectory=list(outputs),
        )


@dataclass(slots=True, kw_only=True)
class RewardResult:
    """The score of a trajectory, its further components by name (`acc`, `pred`, ...), and the seconds it took."""

    score: float
    components: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class RewardManager(ABC):
    """Subclass to decide how a score is found; one a process, used by all of its trajectories at once."""

    @abstractmethod
    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        """The score of one trajectory.

        Raises:
            BoundaryError: no score could be had (boundary "reward"); never a silent 0.
        """

    async def close(self) -> None:
        """Give back what the manager holds, such as its processes."""
        return None


def final_answer(messages: Sequence[Message]) -> str:
    """The text of the last message where it is an assistant's and calls no tool, else nothing."""
    last = messages[-1] if messages else {}
    return text_of(last) if last.get("role") == "assistant" and not last.get("tool_calls") else ""


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
