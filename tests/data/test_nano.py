"""The shipped nano model: small enough, and its tokenizer and chat template are what the quickstart needs."""

import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import agentverl.data
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.tokenizers import load_tokenizer

NANO = Path(agentverl.data.__file__).parent / "nano"
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is 37 * 48?"}]
ARGUMENTS = {"expression": "37 * 48"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "calculator", "arguments": ARGUMENTS}}],
}
RESULT: dict[str, Any] = {"role": "tool", "content": "1776"}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "such as 37 * 48"}},
            "required": ["expression"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(NANO)


def rendered(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return text


def test_has_at_most_a_million_parameters_in_four_megabytes() -> None:
    parameters = sum(tensor.numel() for tensor in load_file(NANO / "model.safetensors").values())
    assert 0 < parameters <= 1_000_000
    assert sum(file.stat().st_size for file in NANO.iterdir()) <= 4_000_000


def test_is_a_qwen2_whose_vocabulary_is_its_tokenizer(tokenizer: Any) -> None:
    config = json.loads((NANO / "config.json").read_text())
    assert config["model_type"] == "qwen2"
    assert config["vocab_size"] == len(tokenizer)
    assert config["eos_token_id"] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_the_first_prompt_has_at_most_a_hundred_tokens(tokenizer: Any) -> None:
    assert len(ChatTemplate(tokenizer).prompt(QUESTION, [CALCULATOR])) <= 100


def test_each_tool_stands_on_one_line(tokenizer: Any) -> None:
    text = rendered(tokenizer, QUESTION, tools=[CALCULATOR, CLOCK], add_generation_prompt=True)
    tools = text.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in tools] == [CALCULATOR["function"], CLOCK["function"]]


def test_a_call_is_json_between_its_tags(tokenizer: Any) -> None:
    text = rendered(tokenizer, [*QUESTION, CALL])
    call = text.partition("<tool_call>\n")[2].partition("\n</tool_call><|im_end|>")[0]
    assert json.loads(call) == {"name": "calculator", "arguments": ARGUMENTS}


def test_answers_of_tools_share_one_user_turn(tokenizer: Any) -> None:
    text = rendered(tokenizer, [*QUESTION, CALL, RESULT, RESULT], add_generation_prompt=True)
    response = "<tool_response>\n1776\n</tool_response>"
    assert text.endswith(f"<|im_start|>user\n{response}\n{response}<|im_end|>\n<|im_start|>assistant\n")


def test_appending_messages_changes_nothing_before(tokenizer: Any) -> None:
    answer: dict[str, Any] = {"role": "assistant", "content": "Answer: 1776"}
    messages = [{"role": "system", "content": "Be brief."}, *QUESTION, CALL, RESULT, answer, *QUESTION]
    texts = [rendered(tokenizer, messages[:stop], tools=[CALCULATOR]) for stop in range(2, len(messages) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(texts))


def test_digits_stand_alone(tokenizer: Any) -> None:
    assert tokenizer.tokenize("What is 37 * 48?").count("3") == 1
    assert tokenizer.tokenize("1776") == ["1", "7", "7", "6"]


@given(text=st.text())
def test_any_text_can_be_encoded(tokenizer: Any, text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(composed, add_special_tokens=False)) == composed
