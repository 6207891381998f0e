"""`actor_rollout_ref.rollout.multi_turn.*` (short: `multi_turn.*`): turns, tools and their limits."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from agentverl.settings.paths import resolve_path
from agentverl.settings.section import Section


class MultiTurnSettings(Section):
    """What a multi-turn loop may do within one trajectory."""

    max_assistant_turns: int | None = Field(None, gt=0)
    """Null means no limit but the lengths."""
    max_user_turns: int | None = Field(None, gt=0)
    """Messages of tools and environment after the first prompt; null means no limit."""
    tool_config_path: str | None = None
    """A YAML with `tools: [{tool: calculator, timeout_seconds: 5}]`."""
    function_tool_path: str | None = None
    """A Python file whose annotated functions are tools."""
    max_parallel_calls: int = Field(1, gt=0)
    """Calls of one turn that are carried out; further ones are answered with a note."""
    max_tool_response_length: int | None = Field(256, gt=0)
    """Tokens (not characters) of one tool result; longer ones are cut; null cuts only to what is left."""
    tool_response_truncate_side: Literal["left", "middle", "right"] = "middle"
    """The side that is cut away."""
    format: str = "hermes"
    """How the model writes tool calls: a tool parser."""
    max_consecutive_invalid_calls: int | None = Field(3, gt=0)
    """Turns in a row without one valid call among their calls, after which the episode ends; null means no limit."""
    max_tokens_per_turn: int | None = Field(None, gt=0)
    """Tokens that one turn may sample; null means what is left of the response."""
    max_trajectory_tokens: int | None = Field(None, gt=0)
    """Response tokens of all sequences of a trajectory together; null means no limit."""
    reasoning: Literal["keep", "fork"] = "keep"
    """Where the chat template strips earlier reasoning: keep it, or go on in a new sequence without it."""

    @property
    def tool_config_file(self) -> Path | None:
        """Where `tool_config_path` leads to."""
        return None if self.tool_config_path is None else resolve_path(self.tool_config_path)

    @property
    def function_tool_file(self) -> Path | None:
        """Where `function_tool_path` leads to."""
        return None if self.function_tool_path is None else resolve_path(self.function_tool_path)

    @property
    def has_tools(self) -> bool:
        """Whether the configuration names tools; a row or an environment may still bring its own."""
        return self.tool_config_path is not None or self.function_tool_path is not None
