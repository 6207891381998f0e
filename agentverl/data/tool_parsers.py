"""What a tool parser is: it finds reasoning, content and tool calls in the text of one assistant turn."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from agentverl.errors import PluginError
from agentverl.messages import ToolCall
from agentverl.plugins import find

RegionKind = Literal["reasoning", "call_syntax", "arguments"]


@dataclass(frozen=True, slots=True)
class Region:
    """`text[start:stop]` of a turn that is no part of its answer."""

    kind: RegionKind
    start: int
    stop: int


@dataclass(slots=True)
class ParsedReply:
    """An assistant turn taken apart; calls that are malformed or cut off are there too, each with its `error`."""

    content: str
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)


class ToolParser(ABC):
    """Subclass it for models that write their tool calls in another way; one instance serves all trajectories."""

    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end a turn of tool calls beside the chat template's own end of turn."""

    @abstractmethod
    def parse(self, text: str, *, cut: bool = False) -> ParsedReply:
        """Take a turn's text apart; it never raises, whatever the model wrote.

        `text` includes the marks of calls and reasoning but not the token that ended the turn. `cut` says that the
        turn ended because its budget was spent. A call inside reasoning is no call.
        """

    def regions(self, text: str) -> list[Region]:
        """Reasoning, calls and, within calls, their arguments, in order; later ones stand inside earlier ones.

        Statistics of tokens are told apart by it. A parser that does not write it takes all text for an answer.
        """
        return []


def load_tool_parser(name: str) -> ToolParser:
    """The parser behind `multi_turn.format`: an entry point's name or `package.module:Attribute`.

    Raises:
        PluginError: nothing has that name, or it is no `ToolParser`.
    """
    found = find("tool_parsers", name)
    parser = found() if isinstance(found, type) else found
    if not isinstance(parser, ToolParser):
        raise PluginError(f"tool parser {name!r} is a {type(parser).__name__}, not a subclass of ToolParser")
    return parser
