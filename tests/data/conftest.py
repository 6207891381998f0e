"""A tiny byte-level BPE tokenizer trained on the spot, and chat templates in the styles of well-known families."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "What is 37 * 48? Let me call the calculator and tell you the answer, which is 1776.",
    "user assistant system tool You are a helpful assistant. <tools> </tools> <tool_call> </tool_call>",
    '{"type": "function", "function": {"name": "calculator", "description": "Evaluate.", "parameters": {}}}',
    '{"name": "calculator", "arguments": {"expression": "2 + 3"}}\n\nimport this\n\n\n    def main():\n        pass',
    "<|im_start|> <|im_end|> <|eot_id|> <think> </think> im_start im_end | < > tool_response observation done Hello",
]
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>", "<|end|>", "</s>"]
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"]

CHATML_TOOLS = """
{%- if messages[0].role == 'system' %}
    {%- set lead = messages[0].content %}
{%- else %}
    {%- set lead = 'You are a helpful assistant.' %}
{%- endif %}
{{- '<|im_start|>system\\n' + lead }}
{%- if tools %}
    {{- '\\n\\nYou may call:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

CHATML_THINKING = """
{%- if messages[0].role == 'system' or tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- for tool in tools or [] %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set place = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set place.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- set said = message.content %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > place.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

HEADERS = """
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|header|>' + role + '<|/header|>\\n\\n' }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- (message.tool_calls[0].function.arguments | tojson) + '}' }}
    {%- elif loop.first and tools %}
        {{- 'Functions: ' + (tools | tojson) + '\\n' + message.content | trim }}
    {%- else %}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{%- endif %}
"""

TRAILING_EOS = """
{%- for message in messages %}{{- '<|begin|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|begin|>assistant\\n' }}{%- else %}{{- eos_token }}{%- endif %}
"""

WORDS_BETWEEN = """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}{{- ' ' + message.content + '</s>' }}
    {%- elif message.role == 'user' %}{{- '\\nUSER: ' + message.content + '\\nASSISTANT:' }}
    {%- else %}{{- raise_exception('only user and assistant') }}{%- endif %}
{%- endfor %}
"""

COUNTING = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + ' ' + loop.index | string + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

ANNOUNCING = "{{- '<|begin|>' + messages | length | string + ' messages\\n' }}" + COUNTING.replace(
    " ' + loop.index | string + '", ""
)

UNENDED = """
{%- for message in messages %}{{- message.role + ': ' + message.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}
"""

ROLE_ENDS_TURN = """
{%- for message in messages %}{{- '<|' + {'user': 'begin', 'assistant': 'header', 'tool': 'end'}[message.role] + '|>' }}
{{- '\\n' + message.content }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|header|>' }}{%- endif %}
"""

MOVING_TOOLS = """
{%- set place = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set place.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if tools and loop.index0 == place.last %}{{- '<|begin|>' + (tools | tojson) + '<|end|>' }}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

NAMED_ANSWERS = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- set call = messages[loop.index0 - 1].tool_calls[0] %}
        {%- if call.id != message.tool_call_id %}{{- raise_exception('answer to another call') }}{%- endif %}
        {{- '<|im_start|>' + call.function.name + ' answers\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

STRICT_IDS = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have nine letters') }}{%- endif %}
            {{- '<|header|>' + call.function.name + ' ' + call.function.arguments + ' ' + call.id }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}{{- raise_exception('ids have nine letters') }}{%- endif %}
        {{- '<|/header|>' + message.tool_call_id + ' ' + message.content + '<|/header|>' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content.split('</think>')[-1] + eos_token }}
    {%- else %}
        {%- if tools and message == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}
            {{- '<|begin|>' + (tools | tojson) + '<|end|>' }}
        {%- endif %}
        {{- '<|im_start|>' + message.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
"""

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def train_backend() -> Tokenizer:
    backend = Tokenizer(BPE(unk_token=None))
    backend.pre_tokenizer = Sequence([Split(Regex(WORDS), "isolated"), ByteLevel(False, use_regex=False)])
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=420, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return backend


MakeTokenizer = Callable[..., Any]


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    serialized = train_backend().to_str()

    def make(template: str | None, *, eos: str = "<|im_end|>", backend: Tokenizer | None = None) -> Any:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend or Tokenizer.from_str(serialized), eos_token=eos, bos_token="<|begin|>"
        )
        tokenizer.chat_template = template
        return tokenizer

    return make
