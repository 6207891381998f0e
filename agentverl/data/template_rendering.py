"""Render messages with a model's chat template, with the control strings in their contents hidden from it."""

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

from agentverl.data.control_text import Disguise
from agentverl.errors import BadInputError, ModelFolderError
from agentverl.messages import Message

_lone_surrogate = re.compile("[\ud800-\udfff]")


class TemplateRenderer:
    """A compiled chat template with the variables that go into every rendering.

    `pattern` finds what content may not say, `special_pattern` what even the assistant's own content may not say: the
    marks of reasoning and tool calls that a model writes itself are not special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        template_kwargs: dict[str, Any],
        pattern: re.Pattern[str],
        special_pattern: re.Pattern[str],
    ) -> None:
        templates = tokenizer.chat_template
        if not templates:
            raise ModelFolderError(
                f"{tokenizer.name_or_path or 'the tokenizer'} has no chat template; "
                "give one with model.custom_chat_template"
            )
        named: dict[str, str] = templates if isinstance(templates, dict) else {"default": templates}
        plain = named.get("default") or next(iter(named.values()))
        self._without_tools = _compiled(plain)
        self._with_tools = _compiled(named.get("tool_use", plain))
        self.distinguishes_tools = self._with_tools is not self._without_tools
        self._variables: dict[str, Any] = {"documents": None, **tokenizer.special_tokens_map, **template_kwargs}
        self._pattern = pattern
        self._special_pattern = special_pattern
        self._arguments_as_text = False

    def take_arguments_as(self, conversation: Sequence[Message]) -> None:
        """Learn whether the template wants a call's arguments as an object or as JSON text, from one with a call."""
        for self._arguments_as_text in (False, True, False):
            disguise = Disguise()
            prepared = [self.prepare(message, disguise) for message in conversation]
            with contextlib.suppress(BadInputError):
                self.render(prepared, None, disguise, generation_prompt=False)
                return

    def prepare(self, message: Message, disguise: Disguise) -> Message:
        """The message as templates expect it: text contents as one string, arguments as objects, nothing None."""
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadInputError(f"a message is a mapping with a role and a content, not {message!r:.200}")
        pattern = self._special_pattern if message["role"] == "assistant" else self._pattern
        prepared: Message = {"role": message["role"], "content": self._text(message.get("content"), disguise, pattern)}
        for key, value in message.items():
            if key in ("role", "content") or value is None:
                continue
            if key == "tool_calls":
                if value:  # some templates take an empty list for a call
                    prepared[key] = [self._call(call, disguise) for call in value]
            else:
                prepared[key] = self._hide(value, disguise, pattern)
        return prepared

    def render(
        self,
        prepared: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        disguise: Disguise,
        *,
        generation_prompt: bool,
    ) -> str:
        """Text of prepared messages.

        Raises:
            BadInputError: the template refuses these messages; says what it said.
        """
        template = self._with_tools if tools else self._without_tools
        hidden = [self._hide(dict(tool), disguise, self._pattern) for tool in tools] if tools else None
        try:
            text: str = template.render(
                messages=prepared, tools=hidden, add_generation_prompt=generation_prompt, **self._variables
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError, AttributeError) as error:
            roles = ", ".join(message["role"] for message in prepared)
            raise BadInputError(f"the chat template refuses messages with roles {roles}: {error}") from error
        return text

    def _text(self, content: Any, disguise: Disguise, pattern: re.Pattern[str]) -> str:
        if content is None:
            return ""
        if isinstance(content, list):
            # Joined before control strings are looked for, so that two parts cannot form one.
            content = "".join(_part_text(part) for part in content)
        if not isinstance(content, str):
            raise BadInputError(f"a message's content is a string or a list of parts, not {type(content).__name__}")
        return self._hide_text(content, disguise, pattern)

    def _hide_text(self, text: str, disguise: Disguise, pattern: re.Pattern[str]) -> str:
        if not text.isascii():
            text = _lone_surrogate.sub("\ufffd", text)
        return disguise.hide(text, pattern) if pattern.search(text) else text

    def _hide(self, value: Any, disguise: Disguise, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return self._hide_text(value, disguise, pattern)
        if isinstance(value, dict):
            return {
                self._hide(key, disguise, pattern): self._hide(item, disguise, pattern) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._hide(item, disguise, pattern) for item in value]
        return value

    def _call(self, call: dict[str, Any], disguise: Disguise) -> Any:
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not self._arguments_as_text:
            with contextlib.suppress(ValueError):  # what is no JSON stays the text that it is
                arguments = json.loads(arguments)
        elif isinstance(arguments, dict) and self._arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {**function, "arguments": arguments}
        return self._hide({**call, "function": function} if "function" in call else function, disguise, self._pattern)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type", "text") == "text":
        return str(part.get("text", ""))
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise BadInputError(f"a content part of type {kind!r} came; text parts are what this model path takes")


def _compiled(template: str) -> Any:
    try:
        compiled = _compile_jinja_template(template)
        # Each rendering copies them, name by name where they are the chain of dicts that jinja makes.
        compiled.globals = dict(compiled.globals)
        return compiled
    except jinja2.TemplateSyntaxError as error:
        raise ModelFolderError(f"the chat template does not compile: line {error.lineno}: {error.message}") from error
