"""What an agent loop written for verl 0.9 finds in its base class; point its import line here and it runs.

`register`, `AgentLoopBase`, `AgentLoopOutput` and `AgentLoopMetrics` stand here under verl's names. Loops for text are
supported; a row with images, videos or audio is refused.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentverl.agent_loops.base import AgentLoopBase as NativeAgentLoopBase
from agentverl.agent_loops.context import AgentContext
from agentverl.agent_loops.loading import register_loop
from agentverl.errors import BadInputError
from agentverl.messages import Message
from agentverl.trajectory import AgentLoopMetrics, AgentLoopOutput, TokenOutput

__all__ = ["AgentLoopBase", "AgentLoopMetrics", "AgentLoopOutput", "MergeResult", "TokenOutput", "register"]

_Loop = TypeVar("_Loop", bound=type[NativeAgentLoopBase])


def register(agent_name: str) -> Callable[[_Loop], _Loop]:
    """Make a loop known by the name that rows and `agent.default_agent_loop` use, once its module is imported."""

    def decorate(loop_class: _Loop) -> _Loop:
        register_loop(agent_name, loop_class)
        return loop_class

    return decorate


class ConfigSection(dict[str, Any]):
    """A mapping that may also be read by attribute, as verl's loops read their configuration."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(
            {key: ConfigSection(value) if isinstance(value, Mapping) else value for key, value in values.items()}
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r} here; it has {', '.join(self)}") from None


@dataclass
class MergeResult:
    """The tokens so far, and what the last merge added to them."""

    token_ids: list[int]
    appended_token_count: int
    kind: str = "context"
    inserted_token_ids: list[int] = field(default_factory=list)
    removed_prefix_token_count: int = 0


class AgentLoopBase(NativeAgentLoopBase):
    """verl's base class: the whole configuration, and helpers that keep tokens append-only."""

    def __init__(self, context: AgentContext, **settings: Any) -> None:
        super().__init__(context, **settings)
        self.config = ConfigSection(_config_of(context))
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.data_config = self.config.data
        self.apply_chat_template_kwargs = self.data_config.get("apply_chat_template_kwargs") or {}
        self.mm_processor_kwargs: dict[str, Any] = {}
        self.dataset_cls = None
        self.loop = asyncio.get_running_loop()

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> Any:
        """verl's loops take any keys."""
        return ConfigSection(settings)

    async def process_multi_modal_info(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Nothing, for messages of text.

        Raises:
            BadInputError: a message holds something else.
        """
        for message in messages:
            parts = message.get("content")
            if isinstance(parts, list) and any(part.get("type") != "text" for part in parts):
                raise BadInputError("loops on agentverl.agent_loops.verl take text only; use Chat for images")
        return {}

    async def process_vision_info(self, messages: Sequence[Message]) -> dict[str, Any]:
        """verl's older name of `process_multi_modal_info`."""
        return await self.process_multi_modal_info(messages)

    def _assert_mm_supported(self, has_multi_modal: bool) -> None:
        if has_multi_modal:
            raise BadInputError("loops on agentverl.agent_loops.verl take text only; use Chat for images")

    def _get_mm_processor_kwargs(self, audio_data: Any = None) -> dict[str, Any]:
        return {}

    @staticmethod
    def build_sglang_video_payload(videos: Any, mm_inputs: Any) -> None:
        """There are no videos."""
        return None

    async def ct_build_initial_tokens(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None, **_: Any
    ) -> list[int]:
        """The ids of the prompt; a prompt longer than allowed is an error and never loses its beginning silently."""
        ids = self.context.template.prompt(messages, tools)
        limit = self.rollout_config.get("prompt_length")
        if limit is not None and len(ids) > limit:
            raise BadInputError(f"the prompt has {len(ids)} tokens, more than data.max_prompt_length={limit}")
        return ids

    async def ct_merge_context_msg(
        self,
        previous_messages: Sequence[Message],
        updated_messages: Sequence[Message],
        runtime_token_ids: list[int],
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """Append the messages that are new in `updated_messages`, under mask 0."""
        template, new = self.context.template, list(updated_messages[len(previous_messages) :])
        end = template.end_of_turn(runtime_token_ids)
        delta = template.delta(previous_messages, new, tools)
        added = len(end) + len(delta)
        merged = MergeResult([*runtime_token_ids, *end, *delta], len(delta), inserted_token_ids=end)
        log_probs = None if response_logprobs is None else [*response_logprobs, *[0.0] * added]
        return merged, [*response_mask, *[0] * added], log_probs

    async def ct_merge_assistant_token(
        self,
        runtime_token_ids: list[int],
        assistant_token_ids: list[int],
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        assistant_logprobs: list[float] | None = None,
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """Append what the policy sampled, under mask 1."""
        count = len(assistant_token_ids)
        merged = MergeResult([*runtime_token_ids, *assistant_token_ids], count, kind="assistant")
        log_probs = None
        if response_logprobs is not None:
            log_probs = [*response_logprobs, *(assistant_logprobs or [0.0] * count)]
        return merged, [*response_mask, *[1] * count], log_probs


def _config_of(context: AgentContext) -> Mapping[str, Any]:
    """The whole configuration where it was handed in, with the two lengths where verl's loops look for them."""
    limits = context.limits
    config = dict(context.whole_config or {})
    data = {"max_response_length": limits.max_response_length, **config.get("data", {})}
    multi_turn = {
        "max_assistant_turns": limits.max_assistant_turns,
        "max_user_turns": limits.max_user_turns,
        "max_parallel_calls": limits.max_parallel_calls,
        "max_tool_response_length": limits.max_tool_response_length,
        "tool_response_truncate_side": limits.tool_response_truncate_side,
    }
    role = dict(config.get("actor_rollout_ref", {}))
    rollout = {
        "response_length": limits.max_response_length,
        "prompt_length": data.get("max_prompt_length"),
        "multi_turn": multi_turn,
        **role.get("rollout", {}),
    }
    return {**config, "data": data, "actor_rollout_ref": {**role, "rollout": rollout}}
