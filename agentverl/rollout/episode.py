"""One trajectory to play, and what became of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from agentverl.errors import Boundary
from agentverl.protocol.column_store import Block
from agentverl.rewards.base import RewardInput
from agentverl.rollout.kept_sequences import Kept
from agentverl.tracking.journal import Written
from agentverl.trajectory import AgentLoopOutput, Termination


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Sample number `sample` of one prompt; `row` holds the fields of the dataset's row."""

    uid: str
    sample: int
    row: Mapping[str, Any]
    sampling_params: Mapping[str, Any]
    validation: bool = False
    step: int = 0
    """That it is sampled for."""

    @property
    def trajectory_id(self) -> str:
        return f"{self.uid}/{self.sample}"

    def __reduce__(self) -> tuple[Callable[..., "Episode"], tuple[Any, ...]]:
        # The way of frozen dataclasses takes five times as long.
        return _episode, tuple(getattr(self, name) for name in _FIELDS)


_FIELDS = tuple(field.name for field in fields(Episode))


def _episode(*values: Any) -> Episode:
    return Episode(**dict(zip(_FIELDS, values, strict=True)))


@dataclass(slots=True, kw_only=True)
class Failure:
    """Why a trajectory failed: the boundary, what it said, and for the agent's own code where it was raised."""

    boundary: Boundary
    message: str
    traceback: str = ""
    retriable: bool = False

    @property
    def termination(self) -> Termination:
        return Termination(f"error:{self.boundary}")


@dataclass(slots=True, kw_only=True)
class EpisodeResult:
    """What a trajectory left behind; `outputs` of a failed one are for the journal only.

    What comes from another process has been kept there (see `Keeper`): its `outputs` come without tokens and messages.

    `score` is None where the trajectory failed. `components` are further values by name, such as `acc`.
    """

    episode: Episode
    outputs: list[AgentLoopOutput] = field(default_factory=list)
    termination: Termination = Termination.ANSWERED
    score: float | None = None
    components: dict[str, Any] = field(default_factory=dict)
    environment_score: float | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    attempts: int = 1
    to_judge: RewardInput | Block | None = None
    """What the reward manager has still to score; from another process a reference to the whole result."""
    kept: Kept | None = None
    """What is trained on, its tokens and images in a store."""
    written: Written | None = None
    """Where the journal has it."""
    texts: tuple[str, str] | None = None
    """The last sequence's prompt and response, where somebody asks for them."""

    @property
    def failed(self) -> bool:
        return self.failure is not None or self.termination.is_failure

    @property
    def blocks(self) -> list[Block]:
        """What stores hold of it, with which its runner may be lost."""
        whole = [self.to_judge] if isinstance(self.to_judge, Block) else []
        return [*whole, *(self.kept.columns.values() if self.kept is not None else ())]

    @property
    def weight_versions(self) -> tuple[int, int] | None:
        """The oldest and the newest weights that a token was sampled with; None where no server told."""
        versions = [version for output in self.outputs for _, version in output.version_spans]
        return (min(versions), max(versions)) if versions else None


@dataclass(slots=True, kw_only=True)
class Group:
    """The trajectories of one prompt, in sample order, and those that failed."""

    uid: str
    row: Mapping[str, Any]
    results: list[EpisodeResult]
    failures: list[EpisodeResult]

    @property
    def excluded_fraction(self) -> float:
        """The share of this prompt's samples that failed."""
        total = len(self.results) + len(self.failures)
        return len(self.failures) / total if total else 0.0
