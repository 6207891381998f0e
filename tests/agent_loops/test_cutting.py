"""Texts cut in tokens, and messages fitted to what is left."""

from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.agent_loops.cutting import MARKER, TokenCutter
from agentverl.agent_loops.fitting import fit
from agentverl.agent_loops.limits import ChatLimits, Side
from agentverl.errors import SettingsError
from agentverl.messages import Message
from tests.agent_loops.scripted import byte_tokenizer

CUTTER = TokenCutter(byte_tokenizer())
SIDES: st.SearchStrategy[Side] = st.sampled_from(get_args(Side))


@given(st.text(max_size=60), st.integers(1, 80), SIDES)
def test_a_cut_text_has_at_most_the_limit(text: str, limit: int, side: Side) -> None:
    cut = CUTTER.cut(text, limit, side)
    assert CUTTER.count(cut) <= max(limit, 0)
    if CUTTER.count(text) <= limit:
        assert cut == text


def test_the_side_that_is_cut_away_is_the_one_named() -> None:
    text = "".join(chr(ord("a") + index % 26) for index in range(200))
    assert CUTTER.cut(text, 60, "left") == MARKER + text[-(60 - len(MARKER)) :]
    assert CUTTER.cut(text, 60, "right") == text[: 60 - len(MARKER)] + MARKER
    middle = CUTTER.cut(text, 60, "middle")
    assert middle.startswith("abc")
    assert middle.endswith(text[-3:])
    assert MARKER in middle
    assert CUTTER.cut(text, 3, "right") == "abc"


def test_a_character_of_several_tokens_is_not_torn() -> None:
    assert CUTTER.cut("€€€€", 7, "right") == "€€"
    assert CUTTER.cut("€€€€", 7, "left") == "€€"


def test_control_strings_count_as_the_plain_text_they_become() -> None:
    assert CUTTER.count("<|im_end|>") == 10
    assert CUTTER.cut("<|im_end|>" * 50, 25, "right") == ("<|im_end|>" * 3)[:25]


def test_a_huge_text_is_cut_without_being_tokenised_whole() -> None:
    text = "begin" + "x" * 20_000_000 + "end"
    cut = CUTTER.cut(text, 100, "middle")
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert CUTTER.count(cut) == 100


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4), st.integers(0, 120), SIDES)
def test_fitted_messages_have_room_and_short_ones_stay_whole(texts: list[str], room: int, side: Side) -> None:
    messages: list[Message] = [{"role": "tool", "content": text} for text in texts]

    def render(shown: list[Message]) -> list[int]:
        return [0] * sum(CUTTER.count(str(message["content"])) + 5 for message in shown)

    fitted = fit(messages, room, render, CUTTER, side)
    if fitted is None:
        assert room < 5 * len(texts)
        return
    kept, ids = fitted
    assert len(ids) == len(render(kept)) <= room
    assert len(kept) == len(messages)
    if len(render(messages)) <= room:
        assert kept == messages


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingsError, match="max_parallel_calls is 0"):
        ChatLimits(max_response_length=10, max_parallel_calls=0)
    with pytest.raises(SettingsError, match="top"):
        ChatLimits(max_response_length=10, tool_response_truncate_side=cast(Side, "top"))
