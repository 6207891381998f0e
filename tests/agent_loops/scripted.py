"""A byte-level tokenizer, the nano chat template, a parser of calls, and a fake model server that plays a script."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from agentverl.agent_loops.context import AgentContext
from agentverl.agent_loops.cutting import TokenCutter
from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.messages import ToolCall, ToolResponse
from agentverl.trajectory import TokenOutput

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass
class TinyParsed:
    content: str
    reasoning: str | None
    tool_calls: list[ToolCall]


class TinyParser:
    """Calls in <tool_call> tags as JSON; what precedes </think> is reasoning."""

    def parse(self, text: str, *, cut: bool = False) -> TinyParsed:
        reasoning, end, rest = text.rpartition("</think>")
        calls = [self._call(match.group(1)) for match in CALL.finditer(rest)]
        left = CALL.sub("", rest)
        if "<tool_call>" in left:
            calls.append(ToolCall("", {}, error="the call was cut off" if cut else "the call is not closed", raw=left))
            left = left.partition("<tool_call>")[0]
        return TinyParsed(left.strip(), reasoning.replace("<think>", "") if end else None, calls)

    def _call(self, text: str) -> ToolCall:
        try:
            call = json.loads(text)
            return ToolCall(call["name"], call["arguments"], raw=text)
        except (ValueError, KeyError, TypeError) as error:
            return ToolCall("", {}, error=f"not a call: {error}", raw=text)


@dataclass
class ScriptedServer:
    """A fake of the model server: plays the given texts, keeps within max_tokens, and records what it sampled."""

    template: ChatTemplate
    script: list[str]
    requests: list[dict[str, Any]] = field(default_factory=list)
    sampled: list[TokenOutput] = field(default_factory=list)
    version: int = 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        await asyncio.sleep(0)
        text = self.script[len(self.requests)] if len(self.requests) < len(self.script) else "I am done."
        self.requests.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params})
        ids = self.template.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, self.template.tokenizer.eos_token_id]
        taken = ids[: sampling_params["max_tokens"]]
        reason = "completed" if len(taken) == len(ids) else "length"
        log_probs = [-0.001 * (len(self.requests) * 100 + i) for i in range(len(taken))]
        output = TokenOutput(taken, log_probs, reason, [(len(taken), self.version)])
        self.sampled.append(output)
        return output


@dataclass
class FunctionTool:
    """A bound tool around a coroutine function."""

    name: str
    function: Callable[..., Any]
    timeout_seconds: float | None = None

    @property
    def schema(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {}}
        return {"type": "function", "function": {"name": self.name, "description": "", "parameters": parameters}}

    async def call(self, arguments: dict[str, Any]) -> ToolResponse:
        answer = await self.function(**arguments)
        return answer if isinstance(answer, ToolResponse) else ToolResponse(text=answer)


def byte_tokenizer() -> Any:
    """One token a byte, and the control tokens of ChatML."""
    alphabet = sorted(ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = (files("agentverl.data") / "nano" / "chat_template.jinja").read_text()
    return tokenizer


def call_text(name: str, **arguments: Any) -> str:
    """What the model writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Scene:
    """A context with its scripted server."""

    context: AgentContext
    server: ScriptedServer


def make_scene(
    template: ChatTemplate,
    cutter: TokenCutter,
    script: Sequence[str] = (),
    *,
    tools: Sequence[FunctionTool] = (),
    world: Any = None,
    **limits: Any,
) -> Scene:
    """A trajectory's context in front of a server that plays `script`."""
    server = ScriptedServer(template, list(script))
    context = AgentContext(
        server_manager=server,
        template=template,
        parser=TinyParser(),
        limits=ChatLimits(**{"max_response_length": 4096, **limits}),
        cutter=cutter,
        tools={tool.name: tool for tool in tools},
        world=world,
        environment=world,
        trajectory_id="0-7/2",
        uid="0-7",
        sample=2,
    )
    return Scene(context, server)
