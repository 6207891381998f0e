"""The limits of a chat, in tokens, turns and calls, and the budget that the sequences of one trajectory share."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from agentverl.errors import SettingsError

Side = Literal["left", "right", "middle"]


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """How far one chat may go; `None` is no limit.

    `max_response_length` and `max_model_len` count the tokens of one sequence, `max_trajectory_tokens` the response
    tokens of all sequences of a trajectory, `max_tokens_per_turn` what one reply may take.
    """

    max_response_length: int
    max_model_len: int | None = None
    max_tokens_per_turn: int | None = None
    max_trajectory_tokens: int | None = None
    max_assistant_turns: int | None = None
    max_user_turns: int | None = None
    max_parallel_calls: int = 1
    max_tool_response_length: int | None = 256
    tool_response_truncate_side: Side = "middle"
    max_consecutive_invalid_calls: int | None = None
    reasoning: Literal["keep", "fork"] = "keep"

    def __post_init__(self) -> None:
        for name in (
            "max_response_length",
            "max_model_len",
            "max_tokens_per_turn",
            "max_trajectory_tokens",
            "max_assistant_turns",
            "max_user_turns",
            "max_parallel_calls",
            "max_tool_response_length",
            "max_consecutive_invalid_calls",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} is {value}; it has to be at least 1 (null means no limit)")
        if self.tool_response_truncate_side not in ("left", "right", "middle"):
            raise SettingsError(
                f"tool_response_truncate_side is {self.tool_response_truncate_side!r}; expected left, right or middle"
            )
        if self.reasoning not in ("keep", "fork"):
            raise SettingsError(f"reasoning is {self.reasoning!r}; expected keep or fork")


@dataclass(slots=True)
class TrajectoryBudget:
    """Response tokens that all sequences of a trajectory may still take together; `None` is no limit.

    A reply reserves the most it may take while it is sampled, so that sub-agents that speak at the same time cannot
    take the same tokens.
    """

    left: int | None = None
    reserved: int = 0
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def take(self, tokens: int) -> None:
        """Use tokens up."""
        if self.left is not None:
            self.left -= tokens

    @contextmanager
    def reservation(self, tokens: int) -> Iterator[None]:
        """Keep tokens from others; what was not taken is theirs again at the end."""
        self.take(tokens)
        self.reserved += tokens
        try:
            yield
        finally:
            self.take(-tokens)
            self.reserved -= tokens
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def released(self) -> None:
        """Wait until a reservation ends."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future
