"""The chat of one agent: an agent loop sees only messages; tokens, masks, budgets and endings are kept here."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from agentverl.agent_loops.calls import INVALID_KINDS, CallRunner, step
from agentverl.agent_loops.context import AgentContext
from agentverl.agent_loops.protocols import BoundTool
from agentverl.agent_loops.reply import Reply, answer_message, read_reply
from agentverl.agent_loops.transcript import Transcript
from agentverl.messages import Message, ToolCall, ToolResponse
from agentverl.trajectory import AgentLoopOutput, Termination, TokenOutput

_CALLS_AFTER_THE_END = 100


class Chat:
    """A conversation with the policy that becomes one or more sequences of a trajectory.

    A chat that is `done` generates nothing and carries out no calls; `termination` says how it ended. One that is not
    done when its outputs are taken was answered.
    """

    def __init__(
        self,
        context: AgentContext,
        messages: Sequence[Message],
        sampling_params: Mapping[str, Any],
        *,
        tools: Mapping[str, BoundTool] | None = None,
        role: str = "main",
        parent: "Chat | None" = None,
    ) -> None:
        self.role = role
        self.trainable = True
        self._context = context
        self._limits = context.limits
        self._sampling_params = dict(sampling_params)
        self._tools = context.tools if tools is None else tools
        offered = context.world_schemas if self._tools is context.tools else ()
        self._schemas = [*(tool.schema for tool in self._tools.values()), *offered] or None
        self._runner = CallRunner(self._tools, context.world, self._limits.max_parallel_calls)
        stops = {*context.template.stop_token_ids, *getattr(context.parser, "stop_token_ids", ())}
        self._stop_token_ids = sorted(stops)
        self._unique_role = context.unique_role(role)
        self._parent = parent.sequence_id if parent else None
        self._children: list[Chat] = []
        self._earlier: list[Transcript] = []
        self._turns = self._user_turns = self._invalid_turns = self._calls_after_the_end = 0
        self._last_finish = ""
        self._state_key = None if parent else context.state_key
        self._termination: Termination | None = None
        self._transcript: Transcript = Transcript(context, self._schemas, messages)
        if self._transcript.room < 1:
            self.stop(self._transcript.binding_limit)

    @property
    def sequence_id(self) -> str:
        """The current sequence's name in the run: the trajectory's id and the sequence's index."""
        return f"{self._context.trajectory_id}/{self._transcript.sequence.index}"

    @property
    def messages(self) -> list[Message]:
        """The conversation of the current sequence, as the model sees it."""
        return self._transcript.messages

    @property
    def done(self) -> bool:
        """Whether the chat has ended: nothing can be generated any more."""
        return self._termination is not None

    @property
    def termination(self) -> Termination | None:
        """How the chat ended; None while it goes on."""
        return self._termination

    @property
    def budget_left(self) -> int:
        """Response tokens left, of this sequence or of the trajectory, whichever is less."""
        return self._transcript.budget_left

    @property
    def context_left(self) -> int | None:
        """Tokens left in the model's context; None where it has no limit."""
        return self._transcript.context_left

    async def generate(self, *, max_tokens: int | None = None, stop: Sequence[str] | None = None) -> Reply:
        """Let the policy speak, never past what is left of the turn's, the sequence's and the trajectory's budget.

        A chat that is done answers with an empty reply whose `finish_reason` is `ended`.

        Raises:
            RuntimeError: nothing was observed since the last reply, or a loop does not notice that the chat is done.
            BoundaryError: the rollout server failed.
        """
        if self._termination is not None:
            return await self._ended()
        if not self._transcript.can_generate:
            raise RuntimeError("generate() was called twice in a row; observe() a message or call_tools() in between")
        room = self._transcript.room
        while room < 1 and self._context.budget.reserved:  # sub-agents may leave some of what they reserved
            await self._context.budget.released()
            room = self._transcript.room
        if room < 1:
            self.stop(self._transcript.binding_limit)
            return await self._ended()
        caps = [cap for cap in (max_tokens, self._limits.max_tokens_per_turn) if cap is not None]
        output, seconds = await self._sample(self._request(min([room, *caps]), stop))
        reply = read_reply(self._context, output, self._stop_token_ids)
        temperature = float(self._sampling_params.get("temperature", 1.0))
        self._transcript.append_reply(
            output, reply.message, seconds=seconds, temperature=temperature, state_key=self._state_key
        )
        if reply.is_void:
            self._transcript.mark_void()
        self._state_key = None
        self._turns += 1
        self._last_finish = reply.finish_reason
        if reply.finish_reason == "aborted":
            self.stop(Termination.ABORTED)
        elif reply.finish_reason == "length" and len(output.token_ids) >= room:
            self.stop(self._transcript.binding_limit)
        return reply

    async def call_tools(self, calls: Sequence[ToolCall]) -> list[ToolResponse]:
        """Carry out calls and append the answers in call order; errors are answers, which the model sees.

        A call goes to the tool of its name, else to the environment. Calls beyond `max_parallel_calls` are refused.

        Raises:
            BoundaryError: a tool or the environment failed without the policy's doing.
        """
        if self._termination is not None:
            return [ToolResponse(text=f"error: the episode ended ({self._termination})", error="ended") for _ in calls]
        started = time.monotonic()
        answers = await self._runner.run(calls, self._context.deadline)
        tally = self._transcript.tally
        tally.tool_seconds += time.monotonic() - started
        tally.count_answers(calls, answers)
        self._transcript.name_calls([call.name for call in calls if call.error is None])
        for call, answer in zip(calls, answers, strict=True):
            if answer.reward is not None:
                self.reward(answer.reward, name=call.name)
        self._state_key = next((answer.state_key for answer in reversed(answers) if answer.state_key), None)
        all_invalid = bool(answers) and all(answer.error in INVALID_KINDS for answer in answers)
        if all_invalid:
            self._transcript.mark_void()
        self._invalid_turns = self._invalid_turns + 1 if all_invalid else 0
        self._add(
            [self._answer(call, answer) for call, answer in zip(calls, answers, strict=True)],
            done=any(answer.done for answer in answers),
        )
        return answers

    async def observe(self, *messages: Message) -> None:
        """Append user, tool or environment messages, under mask 0, cut to the budget."""
        if messages and self._termination is None:
            self._add([dict(message) for message in messages])

    async def act(self, reply: Reply) -> bool:
        """Send a plain reply to the environment's `step`; False where there is none or it has nothing to say.

        Raises:
            BoundaryError: the environment failed without the policy's doing.
        """
        if self._context.world is None or self._termination is not None:
            return False
        started = time.monotonic()
        outcome = await step(self._context.world, reply.message, self._context.deadline)
        self._transcript.tally.tool_seconds += time.monotonic() - started
        self._state_key = outcome.state_key
        if outcome.reward is not None:
            self.reward(outcome.reward, name="environment")
        if outcome.error is not None:
            self._transcript.tally.errors[outcome.error] += 1
        self._add(outcome.messages, done=outcome.done)
        return bool(outcome.messages)

    async def restart(self, messages: Sequence[Message], *, keep_last_turns: int = 0) -> None:
        """Begin the trajectory's next sequence with these messages and the last turns of this one.

        The kept turns are reused token by token, as context: they carry loss only where they were sampled.
        """
        if self._termination is not None:
            return
        kept = self._transcript
        self._earlier.append(kept)
        self._transcript = Transcript(self._context, self._schemas, messages, kept, keep_last_turns)
        if self._transcript.room < 1:
            self.stop(self._transcript.binding_limit)

    def spawn(
        self,
        messages: Sequence[Message],
        *,
        role: str,
        tools: Mapping[str, BoundTool] | None = None,
        trainable: bool = True,
    ) -> "Chat":
        """A sub-agent: a chat with sequences of its own in the same trajectory; `tools` default to this chat's."""
        chosen = self._tools if tools is None else tools
        child = Chat(self._context, messages, self._sampling_params, tools=chosen, role=role, parent=self)
        child.trainable = trainable
        self._children.append(child)
        return child

    def reward(self, value: float, *, name: str = "turn") -> None:
        """Credit a reward to the last turn of the policy."""
        self._transcript.credit(name, float(value))

    def stop(self, termination: Termination | str) -> None:
        """End the chat; the first ending counts."""
        if self._termination is None:
            self._termination = Termination(termination)

    def outputs(self) -> list[AgentLoopOutput]:
        """The sequences of this chat and of its sub-agents, in the order in which they began."""
        identity = {
            "role": self.role,
            "parent": self._parent,
            "trainable": self.trainable,
            "termination": self._termination or self._natural_ending(),
        }
        transcripts = [*self._earlier, self._transcript]
        own = [transcript for transcript in transcripts if transcript.sequence.response_ids] or transcripts[-1:]
        outputs = [transcript.output(**identity) for transcript in own]
        for child in self._children:
            outputs += child.outputs()
        return sorted(outputs, key=lambda output: output.sequence_index)

    def _natural_ending(self) -> Termination:
        return Termination.RESPONSE_LENGTH if self._last_finish == "length" else Termination.ANSWERED

    async def _ended(self) -> Reply:
        self._calls_after_the_end += 1
        if self._calls_after_the_end > _CALLS_AFTER_THE_END:
            raise RuntimeError(f"the loop goes on after the chat has ended ({self._termination}); check chat.done")
        await asyncio.sleep(0)
        return Reply({"role": "assistant", "content": ""}, finish_reason="ended")

    def _request(self, max_tokens: int, stop: Sequence[str] | None) -> dict[str, Any]:
        params: dict[str, Any] = {
            "logprobs": True,
            **self._sampling_params,
            "max_tokens": max_tokens,
            "stop_token_ids": () if self._sampling_params.get("ignore_eos") else self._stop_token_ids,
            "seed": self._context.seed(self._unique_role, self._turns),
        }
        if stop:
            params["stop"] = list(stop)
        return params

    async def _sample(self, params: dict[str, Any]) -> tuple[TokenOutput, float]:
        transcript, budget = self._transcript, self._context.budget
        media = {"image_data": transcript.images} if transcript.images else {}
        most = params["max_tokens"] + len(transcript.sequence.pending_ids)
        started = time.monotonic()
        with budget.reservation(most) if budget.left is not None else nullcontext():
            output = await self._context.server_manager.generate(
                self._context.request_id(self._unique_role),
                prompt_ids=transcript.sequence.context(),
                sampling_params=params,
                **media,
            )
        return output, time.monotonic() - started

    def _answer(self, call: ToolCall, answer: ToolResponse) -> Message:
        limit, side = self._limits.max_tool_response_length, self._limits.tool_response_truncate_side
        text = answer.text or ""
        return answer_message(call, answer, text if limit is None else self._context.cutter.cut(text, limit, side))

    def _add(self, messages: list[Message], *, done: bool = False) -> None:
        """Append what came from outside, and end the chat where it can't go on."""
        self._stop_after_observation(done)
        self._user_turns += self._turns > 0 and bool(messages) and not self._transcript.waits
        if self._termination is not None:
            self.messages.extend(messages)
            return
        if self._must_fork(messages):
            self._earlier.append(self._transcript)
            self._transcript = Transcript(self._context, self._schemas, [*self.messages, *messages])
            fits = self._transcript.room >= 1
        else:
            fits = not messages or self._transcript.add(messages)
        if not fits:
            self.stop(self._transcript.binding_limit)

    def _stop_after_observation(self, done: bool) -> None:
        limits = self._limits
        if done:
            self.stop(Termination.FINISHED)
        elif self._context.deadline.passed:
            self.stop(Termination.DEADLINE)
        elif _reached(self._invalid_turns, limits.max_consecutive_invalid_calls):
            self.stop(Termination.INVALID_CALLS)
        elif _reached(self._turns, limits.max_assistant_turns) or _reached(self._user_turns, limits.max_user_turns):
            self.stop(Termination.MAX_TURNS)

    def _must_fork(self, messages: Sequence[Message]) -> bool:
        """Whether the template drops, for these messages, reasoning that the sequence holds."""
        if self._limits.reasoning == "keep" or not self._context.template.strips_reasoning:
            return False
        new_question = any(message["role"] == "user" for message in messages)
        return new_question and any(message.get("reasoning_content") for message in self.messages)


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count >= limit
