"""Reading calls and reasoning out of what a model wrote, well-formed or not."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.data.hermes import HermesToolParser
from agentverl.data.tool_parsers import ToolParser, load_tool_parser
from agentverl.errors import PluginError

parser = HermesToolParser()
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "37 * 48"}}\n</tool_call>'


def test_plain_text_is_content_untouched() -> None:
    parsed = parser.parse("  The answer is 5.\n")
    assert (parsed.content, parsed.reasoning, parsed.tool_calls) == ("  The answer is 5.\n", None, [])


def test_reads_several_calls_and_the_text_around_them() -> None:
    parsed = parser.parse(f"First this.\n{CALL}\n{CALL}\nThen that.")
    assert parsed.content == "First this.\n\n\nThen that."
    assert [call.name for call in parsed.tool_calls] == ["calculator", "calculator"]
    assert parsed.tool_calls[0].arguments == {"expression": "37 * 48"}
    assert [call.error for call in parsed.tool_calls] == [None, None]
    assert parsed.tool_calls[0].raw == CALL


@pytest.mark.parametrize(
    ("body", "name", "error"),
    [
        ('{"name": "a", "arguments": {"x": }}', "", "not valid JSON (expecting value)"),
        ("calculator(37 * 48)", "", "not valid JSON"),
        ('{"name": "a", "arguments": {}}}', "a", "unexpected '}' after the object"),
        ('["a", {}]', "", "is a JSON list; expected"),
        ('{"arguments": {}}', "", "has no name"),
        ('{"name": 3, "arguments": {}}', "", "has no name"),
        ('{"name": "a"}', "a", "has no arguments"),
        ('{"name": "a", "arguments": "x"}', "a", "arguments are a JSON string"),
        ('{"name": "a", "arguments": null}', "a", "arguments are a JSON null"),
        ('{"name": "a", "arguments": {"x": NaN}}', "", "NaN is no JSON value"),
        ("[" * 100_000, "", "too deeply nested"),
        ("9" * 5_000, "", "not valid JSON"),
        ("", "", "not valid JSON"),
    ],
)
def test_malformed_calls_carry_their_error(body: str, name: str, error: str) -> None:
    [call] = parser.parse(f"<tool_call>{body}</tool_call>").tool_calls
    assert call.name == name
    assert call.arguments == {}
    assert call.error is not None
    assert error in call.error


@pytest.mark.parametrize("stop", [len("<tool_call>"), 30, len(CALL) - 1])
def test_a_call_that_does_not_close_is_an_error(stop: int) -> None:
    [call] = parser.parse("Let me see. " + CALL[:stop], cut=True).tool_calls
    assert call.error == "the call was cut off when the budget was spent"
    assert call.raw == CALL[:stop]
    [call] = parser.parse(CALL[:stop], cut=False).tool_calls
    assert call.error == "the call does not end with </tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\nMaybe {CALL}?\n</think>\n\nNo.",
        f"Maybe {CALL}?\n</think>\n\nNo.",
        f"<think>\nMaybe {CALL}?\n</think>No.<think></think>",
        "I write <tool_call> then</think>No.",
    ],
)
def test_calls_inside_reasoning_are_no_calls(text: str) -> None:
    parsed = parser.parse(text)
    assert parsed.tool_calls == []
    assert parsed.content == "No."
    assert parsed.reasoning is not None
    assert "<tool_call>" in parsed.reasoning


def test_reasoning_that_never_ends_holds_everything() -> None:
    parsed = parser.parse(f"<think>\nHm. {CALL}", cut=True)
    assert (parsed.content, parsed.tool_calls) == ("", [])
    assert parsed.reasoning == f"Hm. {CALL}"


def test_a_call_after_reasoning_counts() -> None:
    parsed = parser.parse(f"<think>\nHm.\n</think>\n\n{CALL}")
    assert parsed.reasoning == "Hm."
    assert parsed.content == ""
    assert [call.name for call in parsed.tool_calls] == ["calculator"]


@given(st.text(alphabet='ab"\\\n{}<>/✓', max_size=20), st.sampled_from(["</tool_call>", "</think>", "<think>", "x"]))
def test_arguments_come_back_as_they_were_written(text: str, mark: str) -> None:
    arguments = {"text": text + mark + text}
    call = {"name": "write", "arguments": arguments}
    [parsed] = parser.parse(f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>").tool_calls
    assert parsed.error is None
    assert parsed.arguments == arguments


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name":"a"', "}", "x"])).map(
        "".join
    ),
    st.booleans(),
)
def test_never_raises_whatever_came(text: str, cut: bool) -> None:
    parsed = parser.parse(text, cut=cut)
    assert all(call.error for call in parsed.tool_calls)


def test_many_unfinished_marks_do_not_take_long() -> None:
    start = time.process_time()
    parser.parse("<tool_call>[" * 2_000 + "</think>" + "<think>" * 5_000)
    assert time.process_time() - start < 1


def test_a_parser_is_found_by_name() -> None:
    assert isinstance(load_tool_parser("hermes"), HermesToolParser)
    assert isinstance(load_tool_parser("agentverl.data.hermes:HermesToolParser"), ToolParser)
    with pytest.raises(PluginError, match="not a subclass of ToolParser"):
        load_tool_parser("json:JSONDecoder")
