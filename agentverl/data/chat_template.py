"""Messages to token ids: whole prompts, and the deltas that are appended after what the policy sampled."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from agentverl.data.control_text import ControlText, Disguise
from agentverl.data.recent_ids import RecentIds
from agentverl.data.template_facts import learn_facts
from agentverl.data.template_rendering import TemplateRenderer
from agentverl.data.turn_heads import (
    FOLLOW_UP,
    USER,
    CallKey,
    Head,
    HeadMaker,
    answer_to,
    call_key,
    calling,
    cannot_be_extended,
)
from agentverl.errors import BadInputError, ModelFolderError
from agentverl.messages import Message

Tools = Sequence[dict[str, Any]]
_MOST_HEADS = 256


class ChatTemplate:
    """A model's chat template as an append-only source of tokens.

    A trajectory's ids are `prompt(...)`, then for each turn what the policy sampled, `end_of_turn(sampled)` and
    `delta(...)` for the messages that follow. What was sampled is never decoded and encoded again. Strings of control
    tokens inside contents are plain text; in assistant messages only those of special tokens are, because marks such as
    `<think>` are what a model writes itself.

    Raises:
        ModelFolderError: the template is missing, does not compile, or cannot be extended turn by turn; says how.
    """

    def __init__(
        self,
        tokenizer: Any,
        apply_chat_template_kwargs: dict[str, Any] | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self._control = ControlText(tokenizer)
        self._renderer = TemplateRenderer(
            tokenizer, apply_chat_template_kwargs or {}, self._control.pattern, self._control.special_pattern
        )
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        eos = frozenset([*own, *eos_token_ids])
        self._maker = HeadMaker(self._renderer, self._control, eos)
        self._facts = learn_facts(self._maker, self._renderer, self._control)
        self._heads: dict[CallKey, Head] = {}
        self._recent = RecentIds()
        self._closing = self._control.encode(self._head((), None).closing)
        self.eos_token_ids: frozenset[int] = eos | self._facts.end_ids
        self.strips_reasoning = self._facts.strips_reasoning

    @property
    def stop_token_ids(self) -> list[int]:
        """`eos_token_ids`, sorted: what a request's sampling parameters take."""
        return sorted(self.eos_token_ids)

    def prompt(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """Ids of a conversation, rendered whole, up to where the assistant begins to write.

        Raises:
            BadInputError: a message is malformed or the template refuses the conversation.
        """
        return self._recent.of((messages, tools), partial(self._prompt, messages, tools))

    def _prompt(self, messages: Sequence[Message], tools: Tools | None) -> list[int]:
        disguise = Disguise()
        prepared = [self._renderer.prepare(message, disguise) for message in messages]
        text = self._renderer.render(prepared, tools, disguise, generation_prompt=True)
        return self._control.encode(text, disguise)

    def delta(
        self, messages_before: Sequence[Message], new_messages: Sequence[Message], tools: Tools | None = None
    ) -> list[int]:
        """Ids to append for new messages after a closed assistant turn, the next generation prompt included.

        `messages_before` ends with the assistant's message; it gives the names of the tools that it called.

        Raises:
            BadInputError: the last message before is not the assistant's, or one of the new ones is, or the template
                refuses them.
            ModelFolderError: these messages would change tokens that are already there.
        """
        if messages_before and messages_before[-1].get("role") != "assistant":
            raise BadInputError(
                f"a delta follows an assistant message, not one with role {messages_before[-1].get('role')!r}; "
                "give all messages since the last assistant message at once"
            )
        used_tools = tools if self._facts.depends_on_tools else None
        made = messages_before[-1].get("tool_calls") if messages_before and self._facts.depends_on_calls else None
        encode = partial(self._delta, messages_before, new_messages, used_tools)
        return self._recent.of((new_messages, made, used_tools), encode)

    def _delta(
        self, messages_before: Sequence[Message], new_messages: Sequence[Message], used_tools: Tools | None
    ) -> list[int]:
        disguise = Disguise()
        new = [self._renderer.prepare(message, disguise) for message in new_messages]
        if any(message["role"] == "assistant" for message in new):
            raise BadInputError("a delta has no assistant messages: those are sampled")
        head = self._head(self._calls(messages_before, new), used_tools)
        text = self._control.control_ids[head.end_id] + self._maker.rest(head, new, used_tools, disguise)
        ids = self._control.encode(text, disguise)
        known = [head.end_id, *self._facts.after_end]
        if ids[: len(known)] != known:
            raise cannot_be_extended("what it writes after an end of turn depends on the message that follows")
        return ids[len(known) :]

    def end_of_turn(self, sampled_ids: Sequence[int]) -> list[int]:
        """Ids to append, under mask 0, so that a sampled turn ends as the template ends one.

        For a turn that was cut this is the end-of-turn token and the text after it; else only that text, for instance
        the line feed after `<|im_end|>`.
        """
        if sampled_ids and sampled_ids[-1] in self._facts.end_ids:
            return list(self._facts.after_end)
        return self._closing + self._facts.after_end

    def conversation(self, messages: Sequence[Message], tools: Tools | None = None) -> tuple[list[int], list[int]]:
        """Ids of a conversation as a rollout would hold them, and a mask: 1 on what an assistant samples.

        It samples its content, its tool calls and the end-of-turn token. The ids end with that token where the last
        message is the assistant's, else with a generation prompt.

        Raises:
            BadInputError: the conversation begins with an assistant message, or the template refuses it.
        """
        first = next((i for i, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
        if first == 0:
            raise BadInputError("a conversation begins with a system or user message, not with the assistant's")
        ids = self.prompt(messages[:first], tools)
        mask = [0] * len(ids)
        while first < len(messages):
            sampled = self.assistant_ids(messages[first])
            after = first + 1
            while after < len(messages) and messages[after].get("role") != "assistant":
                after += 1
            follow: list[int] = []
            if first + 1 < len(messages):
                follow = self.end_of_turn(sampled)
                follow = follow + self.delta(messages[: first + 1], messages[first + 1 : after], tools)
            ids += sampled + follow
            mask += [1] * len(sampled) + [0] * len(follow)
            first = after
        return ids, mask

    def assistant_ids(self, message: Message) -> list[int]:
        """Ids that an assistant would have sampled to write a message, the end-of-turn token included.

        Raises:
            ModelFolderError: the template leaves out tool calls, or does not write an assistant message after its own
                generation prompt.
        """
        if message.get("tool_calls") and not self._facts.shows_calls:
            raise ModelFolderError(
                "the chat template leaves out an assistant's tool calls; give one that writes them with "
                "model.custom_chat_template"
            )
        disguise = Disguise()
        prepared = self._renderer.prepare(message, disguise)
        before = self._renderer.render([USER], None, disguise, generation_prompt=True)
        text = self._renderer.render([USER, prepared], None, disguise, generation_prompt=False)
        if not text.startswith(before):
            raise ModelFolderError(
                "the chat template does not write an assistant message after its own generation prompt, so the tokens "
                "an assistant would sample are unknown; apply_chat_template_kwargs or model.custom_chat_template may "
                "help"
            )
        prefix = self._control.encode(before)
        ids = self._control.encode(text, disguise)
        if ids[: len(prefix)] != prefix:
            # The message's first characters would merge with the generation prompt; sampled ones never do.
            end = self._control.control_ids[self._maker.end_id]
            prefix, ids = [0], self._control.encode(end + text[len(before) :], disguise)
        sampled = ids[len(prefix) :]
        stop = next((i for i, token in enumerate(sampled) if token in self.eos_token_ids), None)
        if stop is None:
            raise ModelFolderError("the chat template writes no end-of-turn token after this assistant message")
        return sampled[: stop + 1]

    def check_tools(self, tools: Tools | None, roles: Sequence[str] = ("tool", "user")) -> None:
        """See at start-up that these tools can be shown, and that messages of these roles can follow a call.

        Raises:
            ModelFolderError: the template ignores tools, or moves their descriptions when messages are added.
        """
        if not tools:
            return
        if self.prompt([USER], tools) == self.prompt([USER]):
            raise ModelFolderError(
                "the chat template does not show tools to the model; give one that does with model.custom_chat_template"
            )
        if not self._facts.takes_tool_messages:
            raise ModelFolderError(
                "the chat template takes no tool messages; give one that does with model.custom_chat_template"
            )
        if "tool" in roles:
            key = call_key(1)
            self.delta([calling(key)], [answer_to(key[0])], tools)
        if "user" in roles:
            self.delta([{"role": "assistant", "content": "Hello"}], [FOLLOW_UP], tools)

    def _head(self, calls: CallKey, tools: Tools | None) -> Head:
        if tools:
            return self._maker.make(calls, tools)
        if calls not in self._heads:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[calls] = self._maker.make(calls, None)
        return self._heads[calls]

    def _calls(self, before: Sequence[Message], new: list[Message]) -> CallKey:
        """The calls that the leading tool messages answer, as far as the template makes use of them."""
        count = next((i for i, message in enumerate(new) if message["role"] != "tool"), len(new))
        if not self._facts.needs_calls:
            return ()
        plain = call_key(count)
        if not count or not self._facts.depends_on_calls:
            return plain
        made = (before[-1].get("tool_calls") or []) if before else []
        names = {call.get("id"): call.get("function", call).get("name") for call in made}
        key = []
        for message, (any_name, any_id) in zip(new, plain, strict=False):
            call_id = message.get("tool_call_id") or any_id
            key.append((str(message.get("name") or names.get(call_id) or any_name), str(call_id)))
        return tuple(key)
