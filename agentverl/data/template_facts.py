"""What is learned about a chat template by probing it once: what its deltas depend on, and whether they are stable."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentverl.data.control_text import ControlText, Disguise
from agentverl.data.template_rendering import TemplateRenderer
from agentverl.data.turn_heads import (
    FOLLOW_UP,
    MARK,
    USER,
    CallKey,
    HeadMaker,
    answer_to,
    call_key,
    calling,
    cannot_be_extended,
)
from agentverl.errors import BadInputError, ModelFolderError
from agentverl.messages import Message

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"value": {"type": "string", "description": "A value."}}},
    },
}


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """The findings of `learn_facts`."""

    after_end: list[int]
    """Ids of the text after an end of turn, where it is the same before every kind of message and merges with none."""
    end_ids: frozenset[int]
    """The tokens with which the template ends an assistant turn."""
    takes_tool_messages: bool
    shows_calls: bool
    """Whether an assistant's tool calls are written at all."""
    needs_calls: bool
    """Whether tool messages may be written otherwise, or not at all, after a turn that made no calls."""
    depends_on_calls: bool
    depends_on_tools: bool
    strips_reasoning: bool


def learn_facts(maker: HeadMaker, renderer: TemplateRenderer, control: ControlText) -> TemplateFacts:
    """Probe a template, beginning with what every conversation needs: a user message after an answer.

    Raises:
        ModelFolderError: messages cannot be appended without changing what was written before; says how.
    """
    rests = [_rest_after(maker, (), [FOLLOW_UP], None)]
    takes_tools = takes_tool_messages(maker)
    needs_calls = depends_on_calls = False
    if takes_tools:
        answers = [answer_to(call) for call in call_key(2)]
        rests.append(_rest_after(maker, call_key(1), answers[:1], None))
        needs_calls = _refuses_or_differs(maker, (), answers[:1], None, rests[1])
        with contextlib.suppress(BadInputError):  # some templates allow one call a turn
            rests.append(_rest_after(maker, call_key(2), answers, None))
            needs_calls = needs_calls or _refuses_or_differs(maker, (), answers, None, rests[2])
        renamed = (("other", call_key(9)[-1][1]),)
        depends_on_calls = _refuses_or_differs(maker, renamed, answers[:1], None, rests[1])
    depends_on_tools = renderer.distinguishes_tools or _refuses_or_differs(
        maker, (), [FOLLOW_UP], [_PROBE_TOOL], rests[0]
    )
    if takes_tools and not depends_on_tools:
        depends_on_tools = _refuses_or_differs(maker, call_key(1), answers[:1], [_PROBE_TOOL], rests[1])
    return TemplateFacts(
        after_end=_common_after_end(rests, control),
        end_ids=frozenset(end for _, end in rests),
        takes_tool_messages=takes_tools,
        shows_calls=_shows_calls(renderer),
        needs_calls=needs_calls or depends_on_tools,
        depends_on_calls=depends_on_calls,
        depends_on_tools=depends_on_tools,
        strips_reasoning=_strips_reasoning(renderer),
    )


def takes_tool_messages(maker: HeadMaker) -> bool:
    """Whether the template renders a tool's answer at all."""
    try:
        maker.make(call_key(1), None)
    except ModelFolderError:
        raise
    except BadInputError:
        return False
    return True


def _rest_after(
    maker: HeadMaker, calls: CallKey, new: Sequence[Message], tools: Sequence[dict[str, Any]] | None
) -> tuple[str, int]:
    """What is written for new messages, early and late in a conversation, and the end of turn before it."""
    found = []
    for rounds in (1, 2):
        head = maker.make(calls, tools, rounds=rounds)
        found.append((maker.rest(head, new, tools, Disguise()), head.end_id))
    if found[0] != found[1]:
        raise cannot_be_extended(
            "what it writes for a message depends on the number of messages before it: "
            f"{found[0][0]!r} became {found[1][0]!r}"
        )
    return found[0]


def _refuses_or_differs(
    maker: HeadMaker,
    calls: CallKey,
    new: Sequence[Message],
    tools: Sequence[dict[str, Any]] | None,
    expected: tuple[str, int],
) -> bool:
    try:
        return _rest_after(maker, calls, new, tools) != expected
    except BadInputError:
        return True


def _common_after_end(rests: Sequence[tuple[str, int]], control: ControlText) -> list[int]:
    found = []
    for rest, end_id in rests:
        ids = control.encode(control.control_ids[end_id] + rest)[1:]
        stop = next((i for i, token in enumerate(ids) if token in control.control_ids), None)
        if stop is None:  # no control token parts that text from the message, so they might merge
            return []
        found.append(ids[:stop])
    return found[0] if all(ids == found[0] for ids in found) else []


def _shows_calls(renderer: TemplateRenderer) -> bool:
    message = renderer.prepare({**calling(call_key(1)), "content": ""}, Disguise())
    try:
        return MARK in renderer.render([USER, message], None, Disguise(), generation_prompt=False)
    except BadInputError:
        return False


def _strips_reasoning(renderer: TemplateRenderer) -> bool:
    thought = "agentverl0thought"
    forms: list[Message] = [
        {"role": "assistant", "content": "Hello", "reasoning_content": thought},
        {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\nHello"},
    ]
    apart, inline = (
        [
            thought in renderer.render(messages, None, Disguise(), generation_prompt=False)
            for messages in ([USER, form], [USER, form, FOLLOW_UP])
        ]
        for form in forms
    )
    return not inline[1] or (apart[0] and not apart[1])
