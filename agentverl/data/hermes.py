"""The Hermes form of tool calls, which Qwen and many others write: JSON between <tool_call> and </tool_call>."""

import json
import re
from typing import Any, NoReturn

from agentverl.data.tool_parsers import ParsedReply, Region, ToolParser
from agentverl.messages import ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_mark = re.compile(f"{_THINK}|{_OPEN}")
_space = re.compile(r"\s*")
_arguments_key = re.compile(r'"arguments"\s*:\s*')
_EXPECTED = 'expected {"name": ..., "arguments": {...}}'


class HermesToolParser(ToolParser):
    """Calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; reasoning stands in `<think>...</think>`.

    A reply with a lone `</think>` began inside reasoning, as when the generation prompt opens it. Closing marks inside
    the strings of a call's JSON are part of these strings.
    """

    def parse(self, text: str, *, cut: bool = False) -> ParsedReply:
        if _OPEN not in text and _THINK not in text and _THOUGHT not in text:
            return ParsedReply(text)
        position = _end_of_opened_reasoning(text)
        thoughts = [text[: position - len(_THOUGHT)]] if position else []
        said: list[str] = []
        calls: list[ToolCall] = []
        while (mark := _mark.search(text, position)) is not None:
            said.append(text[position : mark.start()])
            if mark.group() == _THINK:
                thought, _, _ = text[mark.end() :].partition(_THOUGHT)
                thoughts.append(thought)
                position = mark.end() + len(thought) + len(_THOUGHT)
            else:
                call, position = _read_call(text, mark.start(), cut)
                calls.append(call)
        said.append(text[position:])
        reasoning = "\n".join(thought.strip() for thought in thoughts) if thoughts else None
        return ParsedReply("".join(said).strip(), reasoning, calls)

    def regions(self, text: str) -> list[Region]:
        position = _end_of_opened_reasoning(text)
        found = [Region("reasoning", 0, position)] if position else []
        while (mark := _mark.search(text, position)) is not None:
            start = mark.start()
            if mark.group() == _THINK:
                closing = text.find(_THOUGHT, start)
                position = len(text) if closing < 0 else closing + len(_THOUGHT)
                found.append(Region("reasoning", start, position))
            else:
                _, position = _read_call(text, start, False)
                found.append(Region("call_syntax", start, position))
                found += _arguments(text, start, position)
        return found


def _arguments(text: str, start: int, stop: int) -> list[Region]:
    """Where the arguments of the call `text[start:stop]` stand; up to its end where their JSON is broken."""
    key = _arguments_key.search(text, start, stop)
    if key is None:
        return []
    decoded = _decode(text, key.end())
    return [Region("arguments", key.end(), stop if isinstance(decoded, str) else min(decoded[1], stop))]


def _end_of_opened_reasoning(text: str) -> int:
    """Where reasoning that the prompt opened ends; 0 if the text does not begin inside reasoning."""
    closing = text.find(_THOUGHT)
    if closing < 0 or 0 <= text.find(_THINK) < closing:
        return 0
    position = 0
    while 0 <= (opening := text.find(_OPEN, position)) < closing:
        decoded = _decode(text, opening + len(_OPEN))
        if isinstance(decoded, str):
            position = opening + len(_OPEN)
        elif decoded[1] > closing:
            return 0
        else:
            position = decoded[1]
    return closing + len(_THOUGHT)


def _read_call(text: str, start: int, cut: bool) -> tuple[ToolCall, int]:
    """The call that opens at `start`, and where it stops."""
    decoded = _decode(text, start + len(_OPEN))
    after = start + len(_OPEN) if isinstance(decoded, str) else _skip_space(text, decoded[1])
    closing = text.find(_CLOSE, after)
    stop = len(text) if closing < 0 else closing + len(_CLOSE)
    raw = text[start:stop]
    if closing < 0:
        reason = "the call was cut off when the budget was spent" if cut else f"the call does not end with {_CLOSE}"
        return ToolCall(_name(decoded), {}, error=reason, raw=raw), stop
    if isinstance(decoded, str):
        return ToolCall("", {}, error=f"the call is not valid JSON ({decoded}); {_EXPECTED}", raw=raw), stop
    if closing > after:
        extra = text[after:closing].strip()
        reason = f"the call is not valid JSON (unexpected {extra[:20]!r} after the object); {_EXPECTED}"
        return ToolCall(_name(decoded), {}, error=reason, raw=raw), stop
    return _checked(decoded[0], raw), stop


def _checked(value: Any, raw: str) -> ToolCall:
    if not isinstance(value, dict):
        return ToolCall("", {}, error=f"the call is a JSON {_kind(value)}; {_EXPECTED}", raw=raw)
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name:
        return ToolCall("", {}, error=f"the call has no name; {_EXPECTED}", raw=raw)
    if "arguments" not in value:
        return ToolCall(name, {}, error=f"the call has no arguments; {_EXPECTED}", raw=raw)
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, error=f"the arguments are a JSON {_kind(arguments)}; {_EXPECTED}", raw=raw)
    return ToolCall(name, arguments, raw=raw)


def _name(decoded: tuple[Any, int] | str) -> str:
    value = None if isinstance(decoded, str) else decoded[0]
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, start: int) -> tuple[Any, int] | str:
    """A JSON value and where it stops, or why there is none."""
    try:
        return _decoder.raw_decode(text, _skip_space(text, start))
    except json.JSONDecodeError as error:
        return error.msg.lower()
    except RecursionError:
        return "too deeply nested"
    except ValueError as error:
        return str(error)


def _skip_space(text: str, start: int) -> int:
    match = _space.match(text, start)
    return start if match is None else match.end()


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), "null")
