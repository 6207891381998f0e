"""Short made-up conversations that end in an assistant turn; what a template writes after one is a token delta."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentverl.data.control_text import ControlText, Disguise
from agentverl.data.template_rendering import TemplateRenderer
from agentverl.errors import ModelFolderError
from agentverl.messages import Message

MARK = "agentverl0mark"
USER: Message = {"role": "user", "content": "Hello"}
# Another text, because some templates look for the last user message by comparing messages.
FOLLOW_UP: Message = {"role": "user", "content": "And then?"}
_ANSWER: Message = {"role": "assistant", "content": MARK}
_UNTOUCHED = Disguise()
# Nine letters and digits, the only form of id that some templates take.
_CALL_ID = "call{:05d}"

CallKey = tuple[tuple[str, str], ...]
"""(name, id) of each call of the assistant turn that tool messages answer; empty before any other message."""


@dataclass(frozen=True, slots=True)
class Head:
    """A conversation up to the end of its last assistant turn, whose last mark stands shortly before that end."""

    messages: list[Message]
    base: str
    """What the template writes before the assistant turn begins; later messages must not change it."""
    text: str
    """The whole of it, including the end of turn, where the template writes it the same way when it goes on."""
    marks: int
    closing: str
    """From the last mark to the end-of-turn token, which is included."""
    end_id: int


def call_key(count: int) -> CallKey:
    """Calls of no particular tool."""
    return tuple(("tool", _CALL_ID.format(number)) for number in range(count))


def answer_to(call: tuple[str, str]) -> Message:
    """A tool message that answers a call."""
    return {"role": "tool", "name": call[0], "tool_call_id": call[1], "content": "done"}


class HeadMaker:
    """Makes heads and tells what a template writes after them."""

    def __init__(self, renderer: TemplateRenderer, control: ControlText, eos_token_ids: frozenset[int]) -> None:
        self._renderer = renderer
        self._control = control
        self._eos = eos_token_ids
        renderer.take_arguments_as([USER, calling(call_key(1))])
        self.end_id = self._end_after_answer()

    def make(self, calls: CallKey, tools: Sequence[dict[str, Any]] | None, *, rounds: int = 1) -> Head:
        """A head of so many rounds of user and assistant; its last assistant turn makes `calls`, if any."""
        last = _ANSWER if not calls else self._renderer.prepare(calling(calls), _UNTOUCHED)
        messages = [*([USER, _ANSWER] * (rounds - 1)), USER, last]
        follow_up = [answer_to(call) for call in calls] or [FOLLOW_UP]
        alone = self._render(messages, tools, generation_prompt=False)
        followed = self._render([*messages, *follow_up], tools, generation_prompt=False)
        marks = alone.count(MARK)
        after = followed[_end_of_mark(followed, marks) :]
        end_id, stop = self._end_of_turn(after, alone[_end_of_mark(alone, marks) :])
        # Up to where a generation prompt and the end of a conversation part ways.
        unprompted = self._render(messages[:-1], tools, generation_prompt=False)
        prompted = self._render(messages[:-1], tools, generation_prompt=True)
        base = prompted[: _common_length(unprompted, prompted)]
        if not followed.startswith(base):
            raise cannot_be_extended(f"it rewrites earlier messages: {_difference(base, followed)}")
        text = followed[: _end_of_mark(followed, marks) + stop]
        return Head(messages, base, text, marks, after[:stop], end_id)

    def rest(
        self, head: Head, new: Sequence[Message], tools: Sequence[dict[str, Any]] | None, disguise: Disguise
    ) -> str:
        """What the template writes after a head's end-of-turn token for prepared new messages and the next prompt.

        Raises:
            ModelFolderError: the new messages change what the template wrote before.
        """
        full = self._renderer.render([*head.messages, *new], tools, disguise, generation_prompt=True)
        if full.startswith(head.text):
            return full[len(head.text) :]
        # Some templates write the last assistant turn otherwise (an empty reasoning block); its end is the same.
        start = _end_of_mark(full, head.marks)
        if not full.startswith(head.base) or start < 0 or not full.startswith(head.closing, start):
            roles = " and ".join(dict.fromkeys(message["role"] for message in new))
            raise cannot_be_extended(
                f"adding a {roles or 'prompt for a further assistant'} message changes what it wrote before: "
                f"{_difference(head.text, full)}"
            )
        return full[start + len(head.closing) :]

    def _render(self, messages: list[Message], tools: Any, *, generation_prompt: bool) -> str:
        return self._renderer.render(messages, tools, _UNTOUCHED, generation_prompt=generation_prompt)

    def _end_after_answer(self) -> int:
        """The token that the template writes after an assistant's text, last and in the middle of a conversation."""
        last = self._render([USER, _ANSWER], None, generation_prompt=False)
        middle = self._render([USER, _ANSWER, FOLLOW_UP], None, generation_prompt=False)
        if MARK not in last or MARK not in middle:
            raise cannot_be_extended("it leaves out the content of an assistant message")
        ends = [self._controls(text.partition(MARK)[2]) for text in (last, middle)]
        if not all(ends):
            raise cannot_be_extended(
                "it writes no end-of-turn token after an assistant message, so that a sampled turn could not be closed"
            )
        return ends[1][0][0]

    def _end_of_turn(self, followed: str, alone: str) -> tuple[int, int]:
        """Id of the end-of-turn token in the text after a mark, and where it stops."""
        wanted = self._eos | {self.end_id}
        found = [(token, stop) for token, stop in self._controls(followed) if token in wanted]
        if found:
            return found[0]
        # A turn of tool calls may have an end of its own; it is the last control token of a conversation ending there.
        controls = [(token, stop) for token, stop in self._controls(alone) if followed.startswith(alone[:stop])]
        if not controls:
            raise cannot_be_extended("it writes no end-of-turn token after tool calls")
        return controls[-1]

    def _controls(self, text: str) -> list[tuple[int, int]]:
        """Ids of the control tokens in a text and where their strings stop."""
        controls, position = [], 0
        for token in self._control.encode(text):
            if token in self._control.control_ids:
                name = self._control.control_ids[token]
                position = text.index(name, position) + len(name)
                controls.append((token, position))
        return controls


def cannot_be_extended(reason: str) -> ModelFolderError:
    """The error for a template to which messages cannot be added without changing the tokens before them."""
    return ModelFolderError(
        f"the chat template cannot be extended turn by turn: {reason}. Multi-turn training needs a template that only "
        "appends; give one with model.custom_chat_template"
    )


def calling(calls: CallKey) -> Message:
    """An assistant message that makes these calls, marked in its content and in the arguments."""
    functions = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": {"value": MARK}}}
        for name, call_id in calls
    ]
    return {"role": "assistant", "content": MARK, "tool_calls": functions}


def _end_of_mark(text: str, count: int) -> int:
    position = 0
    for _ in range(count):
        found = text.find(MARK, position)
        if found < 0:
            return -1
        position = found + len(MARK)
    return position


def _common_length(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _difference(before: str, after: str) -> str:
    same = _common_length(before, after)
    start = max(0, same - 20)
    return f"{before[start : same + 30]!r} became {after[start : same + 30]!r}"
