"""The token half of a chat: one sequence after another, rendered, fitted to the budgets, and turned into outputs."""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from agentverl.agent_loops.context import AgentContext
from agentverl.agent_loops.fitting import fit
from agentverl.agent_loops.sequence import TokenSequence
from agentverl.agent_loops.tally import Tally
from agentverl.messages import Message, text_of
from agentverl.trajectory import AgentLoopMetrics, AgentLoopOutput, Termination, TokenOutput


class Transcript:
    """Messages and tokens of one sequence, always in step.

    Messages added since the last reply wait, rendered, for the next one: adding another renders them anew,
    and what no sampled token has seen when the chat ends is no part of the response.
    """

    def __init__(
        self,
        context: AgentContext,
        schemas: list[dict[str, Any]] | None,
        messages: Sequence[Message],
        kept: "Transcript | None" = None,
        keep_last_turns: int = 0,
    ) -> None:
        """Begin a sequence; of `kept`, the last turns are reused token by token as context."""
        self._context = context
        self._limits = context.limits
        self._schemas = schemas
        self.messages: list[Message] = list(messages)
        self.tally = Tally()
        self.images: list[Any] = []
        self._rounds = 0
        self._waiting: list[Message] = []
        self._last_sampled: list[int] | None = None
        self._collect_images(self.messages)
        self.sequence = TokenSequence(context.next_index(), context.template.prompt(self.messages, schemas))
        if kept is not None and keep_last_turns and kept._last_sampled is not None:
            self._reuse(kept, keep_last_turns)

    def _reuse(self, kept: "Transcript", turns: int) -> None:
        assistant = [i for i, message in enumerate(kept.messages) if message["role"] == "assistant"]
        self.messages += kept.messages[assistant[-min(turns, len(assistant))] :]
        self.sequence.prompt_ids += kept.sequence.tail(turns)
        self.sequence.pending_ids = list(kept.sequence.pending_ids)
        self._waiting = list(kept._waiting)
        self._last_sampled = kept._last_sampled
        self.images = list(kept.images)

    @property
    def assistant_turns(self) -> int:
        """Replies sampled in this sequence."""
        return sum(turn.role == "assistant" for turn in self.sequence.turns)

    @property
    def waits(self) -> bool:
        """Whether messages stand after the last reply."""
        return bool(self._waiting)

    @property
    def can_generate(self) -> bool:
        """Whether a message stands after the last reply."""
        return self._last_sampled is None or bool(self._waiting)

    @property
    def budget_left(self) -> int:
        """Response tokens left, of this sequence or of the trajectory, whichever is less."""
        left = self._limits.max_response_length - self.sequence.response_length
        shared = self._context.budget.left
        return max(0, left if shared is None else min(left, shared - len(self.sequence.pending_ids)))

    @property
    def context_left(self) -> int | None:
        """Tokens left in the model's context; None where it has no limit."""
        limit = self._limits.max_model_len
        return None if limit is None else max(0, limit - self.sequence.length)

    @property
    def room(self) -> int:
        """Tokens that the next reply may have."""
        context = self.context_left
        return self.budget_left if context is None else min(self.budget_left, context)

    @property
    def binding_limit(self) -> Termination:
        """How a chat ends that has no room left."""
        context = self.context_left
        by_context = context is not None and context < self.budget_left
        return Termination.CONTEXT_LENGTH if by_context else Termination.RESPONSE_LENGTH

    def add(self, messages: list[Message]) -> bool:
        """Append messages, cut to leave room for a token of reply; False if not even empty ones fit."""
        start = len(self.messages)
        self._collect_images(messages)
        self._rounds += self._last_sampled is not None and not self._waiting
        if self._last_sampled is None:
            self.messages += messages
            self.sequence.prompt_ids = self._context.template.prompt(self.messages, self._schemas)
            return self.room >= 1
        room = self.room + len(self.sequence.pending_ids) - 1
        fitted = fit(messages, room, self._render, self._context.cutter, self._limits.tool_response_truncate_side)
        if fitted is None:
            self.messages += messages
            self._waiting, self.sequence.pending_ids = [], []
            return False
        kept, self.sequence.pending_ids = fitted
        self.messages[start:] = kept
        self._waiting += kept
        return True

    def _collect_images(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message.get("content"), list):
                self.images += [part["image"] for part in message["content"] if part.get("type") == "image"]

    def _render(self, messages: list[Message]) -> list[int]:
        """The ids between the last sampled token and the next: its missing end of turn, and the waiting messages."""
        before = self.messages[: len(self.messages) - len(self._waiting)]
        template = self._context.template
        end = template.end_of_turn(self._last_sampled or [])
        return [*end, *template.delta(before, [*self._waiting, *messages], self._schemas)]

    def append_reply(
        self, output: TokenOutput, message: Message, *, seconds: float, temperature: float, state_key: str | None = None
    ) -> None:
        """Append a reply exactly as it was sampled; its tokens come under mask 1.

        `state_key` names the state that it answers; None: what was observed does.
        """
        state_key = self.state if state_key is None else state_key
        used = len(output.token_ids)
        if used and self._waiting:
            used += len(self.sequence.pending_ids)
            self.sequence.commit_pending(self._waiting[0]["role"])
        self._context.budget.take(used)
        turn = self.sequence.append_sampled(output, seconds=seconds, temperature=temperature)
        turn.state_key = state_key
        self.messages.append(message)
        self._waiting, self._last_sampled = [], output.token_ids
        self.tally.generate_seconds += seconds
        self.tally.num_preempted += output.num_preempted

    def name_calls(self, names: Sequence[str]) -> None:
        """Note the calls that the last turn made."""
        if self.sequence.turns:
            self.sequence.turns[-1].tool_names += names

    def mark_void(self) -> None:
        """Note that the last turn holds neither a valid call nor an answer."""
        if self.sequence.turns:
            self.sequence.turns[-1].void = True

    @property
    def state(self) -> str:
        """A digest of what stands after the last reply, of the whole conversation where there is none."""
        seen = list(itertools.takewhile(lambda message: message["role"] != "assistant", reversed(self.messages)))
        text = "\x1e".join(f"{message['role']}\x1f{text_of(message)}" for message in reversed(seen))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def credit(self, name: str, value: float) -> None:
        """Add a reward to the last turn of the policy."""
        turn = next((turn for turn in reversed(self.sequence.turns) if turn.role == "assistant"), None)
        if turn is None:
            raise RuntimeError("reward() credits the last turn of the policy, and this sequence has none yet")
        turn.reward = (turn.reward or 0.0) + value
        turn.rewards[name] = turn.rewards.get(name, 0.0) + value
        self.tally.credit(name, value)

    def output(self, **identity: Any) -> AgentLoopOutput:
        """This sequence as an agent loop returns it."""
        sequence, tally = self.sequence, self.tally
        return AgentLoopOutput(
            prompt_ids=sequence.prompt_ids,
            response_ids=sequence.response_ids,
            response_mask=sequence.mask,
            response_logprobs=sequence.log_probs,
            routed_experts=sequence.routed_experts,
            multi_modal_data={"images": self.images} if self.images else None,
            num_turns=1 + self._rounds + self.assistant_turns,
            metrics=AgentLoopMetrics(
                generate_sequences=tally.generate_seconds,
                tool_calls=tally.tool_seconds,
                num_preempted=tally.num_preempted,
            ),
            extra_fields=tally.extra_fields(),
            trajectory_id=self._context.trajectory_id,
            sequence_index=sequence.index,
            turns=sequence.turns,
            version_spans=sequence.version_spans,
            messages=self.messages,
            **identity,
        )
