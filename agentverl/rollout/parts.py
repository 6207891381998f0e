"""What all episodes of a process share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentverl.agent_loops.cutting import TokenCutter
from agentverl.agent_loops.loading import AgentLoops
from agentverl.agent_loops.protocols import ReplyParser, Template
from agentverl.rewards.base import RewardManager
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.stage import Worlds
from agentverl.rollout.turnstile import Turnstile
from agentverl.tools.toolset import Toolset


@dataclass(kw_only=True)
class EpisodeParts:
    """Handed to the runner, which sets up and tears down what needs it."""

    template: Template
    parser: ReplyParser
    agent_loops: AgentLoops = field(default_factory=AgentLoops)
    toolset: Toolset = field(default_factory=Toolset)
    reward: RewardManager | None = None
    """None leaves trajectories unscored where neither loop nor environment scores them."""
    keeper: Keeper = field(default_factory=Keeper)
    processor: Any = None
    models: Mapping[str, Any] = field(default_factory=dict)
    whole_config: Mapping[str, Any] | None = None
    """For loops written for verl; no other plugin sees it."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """The parts with the settings, and what the runner made of both."""

    settings: RunnerSettings
    parts: EpisodeParts
    worlds: Worlds
    cutter: TokenCutter
    turnstile: Turnstile
    """Through which episodes pass where they begin, and with each answer of a server."""
    vocabulary: int
    """Token ids that the tokenizer knows are below it."""
