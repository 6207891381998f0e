"""`actor_rollout_ref.rollout.agent.*` (short: `agent.*`): who acts, in which world, within which time."""

from typing import Annotated, Any

from pydantic import Field

from agentverl.settings.section import Section

Seconds = Annotated[float, Field(gt=0)]


class AgentSettings(Section):
    """The agent loop, the environment, and the bounds of an episode."""

    default_agent_loop: str | None = None
    """For rows without `agent_name`; null means `tool_agent` where tools are configured, else `single_turn_agent`."""
    agent_loop_config_path: str | None = None
    """A YAML list of `{name, _target_, ...}`: agent loops with settings of their own."""
    environment: str | None = None
    """An entry point, `package.module:Class` or `file.py:Class`; makes the tasks where there are no files."""
    environment_kwargs: dict[str, Any] = {}
    """The environment's own settings."""
    num_workers: int | None = Field(None, gt=0)
    """Processes that run episodes; null means one a core of the cluster, at most 8. `local` runs them in its own."""
    max_concurrent_trajectories: int = Field(256, gt=0)
    trajectory_timeout_seconds: Seconds | None = 600.0
    """Of one episode, not counting queueing, sandbox start and weight updates; null means none."""
    start_timeout_seconds: Seconds | None = 120.0
    """Of making what an episode needs: tools and environment."""
    generate_timeout_seconds: Seconds | None = None
    """Of one request for a turn of the model; null means what is left of the trajectory's."""
    max_tokens_per_request: int | None = Field(4096, gt=0)
    """Longer turns are asked for in pieces, so that a lost server costs at most one; null asks for all at once."""
    tool_timeout_seconds: Seconds | None = 30.0
    """Of one tool call, where the tool's entry does not say otherwise."""
    environment_timeout_seconds: Seconds | None = 60.0
    """Of one call of an environment."""
    close_timeout_seconds: Seconds = 30.0
    """Of closing tools and environment at the end."""
    max_retries: int = Field(2, ge=0)
    """New tries after an infrastructure failure, before the trajectory is failed."""
    retry_backoff_seconds: float = Field(0.5, ge=0)
    """Before the first new try; doubles with each."""
