"""What a runner of episodes is told: the defaults of rows, the limits, the time each part may take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentverl.agent_loops.limits import ChatLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """`None` as a number of seconds means no deadline; `debug` means none at all."""

    limits: ChatLimits
    default_agent_loop: str = "single_turn_agent"
    environment: str | None = None
    environment_kwargs: Mapping[str, Any] = field(default_factory=dict)
    run_seed: int = 0
    trajectory_timeout_seconds: float | None = 600.0
    generate_timeout_seconds: float | None = None
    max_tokens_per_request: int | None = None
    environment_timeout_seconds: float | None = 60.0
    start_timeout_seconds: float | None = 120.0
    close_timeout_seconds: float = 30.0
    max_retries: int = 2
    retry_backoff_seconds: float = 0.5
    score_from: Literal["auto", "environment", "function"] = "auto"
    has_custom_reward: bool = False
    """Whether the user named a reward function, which `score_from=auto` then prefers to the environment's score."""
    deterministic: bool = False
    debug: bool = False

    def seconds(self, configured: float | None) -> float | None:
        """A deadline's seconds; none while debugging, so that breakpoints hold."""
        return None if self.debug else configured
