"""What an episode leaves behind: sequences of tokens with their masks, turns, versions and the way it ended."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

VersionSpan = tuple[int, int]
"""(stop, version): tokens up to `stop` (exclusive), from the previous span's stop, were sampled with `version`."""


class Termination(StrEnum):
    """How an episode, or one sequence of it, ended."""

    ANSWERED = "answered"
    """The model answered without calling a tool."""
    FINISHED = "finished"
    """A tool or the environment declared the episode done."""
    MAX_TURNS = "max_turns"
    RESPONSE_LENGTH = "response_length"
    CONTEXT_LENGTH = "context_length"
    DEADLINE = "deadline"
    INVALID_CALLS = "invalid_calls"
    ABORTED = "aborted"
    ERROR_MODEL = "error:model"
    ERROR_TOOL = "error:tool"
    ERROR_ENVIRONMENT = "error:environment"
    ERROR_SANDBOX = "error:sandbox"
    ERROR_REWARD = "error:reward"
    ERROR_AGENT = "error:agent"

    @property
    def is_failure(self) -> bool:
        """Failed trajectories enter no group statistic and carry no loss."""
        return self.value.startswith("error:") or self is Termination.ABORTED


@dataclass(slots=True)
class TokenOutput:
    """What a rollout server answers to one request."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: str = "completed"
    """`completed` (end of turn or a stop string), `length` or `aborted`."""
    weight_versions: list[VersionSpan] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preempted: int = 0
    routed_experts: Any = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Turn:
    """One message's tokens: `response_ids[start:stop]` of its sequence."""

    role: str
    start: int
    stop: int
    seconds: float = 0.0
    tool_names: list[str] = field(default_factory=list)
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    """The parts of `reward` by the name that each was given with."""
    state_key: str | None = None
    """Names the state that a turn of the policy answers; turns with equal keys answer the same."""
    void: bool = False
    """Whether it holds neither a valid call nor an answer."""
    stop_reason: str | None = None
    temperature: float | None = None

    def rewards_by_name(self) -> dict[str, float]:
        """The parts of `reward`; what was given without a name stands under `turn`."""
        return dict(self.rewards) or ({"turn": self.reward} if self.reward else {})


class AgentLoopMetrics(BaseModel):
    """Seconds spent per boundary, and preemptions; verl's fields."""

    model_config = ConfigDict(extra="allow")

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    """One sequence of a trajectory, as verl's agent loops return it; what is agentverl's own has defaults.

    `response_mask` is 1 where the policy sampled the token and 0 anywhere else; `response_logprobs`, where given, has
    one entry a response token (0.0 under mask 0).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_output: Any = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics = Field(default_factory=AgentLoopMetrics)
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    trajectory_id: str = ""
    sequence_index: int = 0
    role: str = "main"
    parent: str | None = None
    trainable: bool = True
    turns: list[Turn] = Field(default_factory=list)
    version_spans: list[VersionSpan] = Field(default_factory=list)
    termination: Termination = Termination.ANSWERED
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The conversation as the model saw it, for rewards, the journal and the viewer."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> "AgentLoopOutput":
        count = len(self.response_ids)
        if len(self.response_mask) != count:
            raise ValueError(f"response_mask has {len(self.response_mask)} entries for {count} response_ids")
        if self.response_logprobs is not None and len(self.response_logprobs) != count:
            raise ValueError(f"response_logprobs has {len(self.response_logprobs)} entries for {count} response_ids")
        return self
