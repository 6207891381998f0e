"""What the runner hands to an agent loop: everything of one trajectory."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentverl.agent_loops.cutting import TokenCutter
from agentverl.agent_loops.limits import ChatLimits, TrajectoryBudget
from agentverl.agent_loops.protocols import BoundTool, Conversation, ModelClient, ReplyParser, Template, World
from agentverl.deadlines import Deadline
from agentverl.settings.seeds import derive_seed


@dataclass(kw_only=True)
class AgentContext:
    """One trajectory's model client, template, tools, world, limits, deadline and identity.

    `chats` lists the chats that the loop began, so that what they hold survives the loop's cancellation.
    """

    server_manager: ModelClient
    template: Template
    parser: ReplyParser
    limits: ChatLimits
    cutter: TokenCutter
    tools: Mapping[str, BoundTool] = field(default_factory=dict)
    environment: Any = None
    world: World | None = None
    """The environment where it defines `step`, else None."""
    world_schemas: Sequence[dict[str, Any]] = ()
    """Schemas of calls that the environment answers, shown beside those of the tools."""
    state_key: str | None = None
    """What the environment names the state of its first observation, if anything."""
    processor: Any = None
    sandbox: Any = None
    models: Mapping[str, Any] = field(default_factory=dict)
    gateway: Any = None
    whole_config: Mapping[str, Any] | None = None
    """For loops written for verl; no other plugin sees it."""
    trajectory_id: str = ""
    uid: str = ""
    sample: int = 0
    run_seed: int = 0
    deadline: Deadline = field(default_factory=Deadline)
    chats: list[Conversation] = field(default_factory=list)
    budget: TrajectoryBudget = field(init=False)
    _indices: Iterator[int] = field(init=False, default_factory=itertools.count)
    _roles: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = TrajectoryBudget(self.limits.max_trajectory_tokens)

    @property
    def tokenizer(self) -> Any:
        return self.template.tokenizer

    def decode(self, token_ids: list[int]) -> str:
        """The text of sampled ids, control tokens included, just as the tokenizer's own decoder spells it."""
        text: str = self.template.tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def next_index(self) -> int:
        """The index of the trajectory's next sequence."""
        return next(self._indices)

    def unique_role(self, role: str) -> str:
        """`role` for its first chat, `role/1` for the second, ...: what seeds tell chats of the same role apart by."""
        number = self._roles.get(role, 0)
        self._roles[role] = number + 1
        return f"{role}/{number}" if number else role

    def request_id(self, role: str) -> str:
        """What the rollout server knows a chat's requests by: the trajectory's id, for sub-agents with their role."""
        return self.trajectory_id if role == "main" else f"{self.trajectory_id}/{role}"

    def seed(self, role: str, turn: int) -> int:
        """The seed of one turn of one chat of this trajectory."""
        return derive_seed(self.run_seed, self.uid, self.sample, role, turn)
