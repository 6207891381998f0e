"""CPU time of this thread in other people's code: tokenizer, chat template, and Ray's object store."""

import time
from collections.abc import Callable
from typing import Any

import jinja2
import ray
import tokenizers

from agentverl.agent_loops.context import AgentContext
from agentverl.data import control_text
from agentverl.protocol.ragged import Ragged

_CLOCK = time.thread_time
_spent = [0.0]


def seconds() -> float:
    """Spent there so far."""
    return _spent[0]


def begin() -> None:
    """Count from now on; to be called before a template is loaded."""
    jinja2.Template.render = counted(jinja2.Template.render)  # type: ignore[method-assign]
    ray.put = counted(ray.put)
    Ragged.__reduce__ = counted(Ragged.__reduce__, -1.0)  # type: ignore[method-assign]
    AgentContext.decode = counted(AgentContext.decode)  # type: ignore[method-assign]  # nothing but the tokenizer's own
    control_text.Tokenizer = _Tokenizers  # type: ignore[attr-defined]


def counted(function: Callable[..., Any], sign: float = 1.0) -> Callable[..., Any]:
    """The same function, whose time is counted; -1 takes it off again, for our own code within theirs."""

    def call(*arguments: Any, **options: Any) -> Any:
        started = _CLOCK()
        try:
            return function(*arguments, **options)
        finally:
            _spent[0] += sign * (_CLOCK() - started)

    return call


class _Tokenizers:
    """Makes tokenizers whose encoding is counted."""

    @staticmethod
    def from_str(text: str) -> "_Tokenizer":
        return _Tokenizer(tokenizers.Tokenizer.from_str(text))


class _Tokenizer:
    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        object.__setattr__(self, "_tokenizer", tokenizer)
        object.__setattr__(self, "encode", counted(tokenizer.encode))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tokenizer, name, value)
