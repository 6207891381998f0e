"""Conversations for supervised fine-tuning: what is learnt, and what is cut."""

import json
from typing import Any

import pytest

from agentverl.data.chat_template import ChatTemplate
from agentverl.data.sft_dataset import SFTDataset
from agentverl.errors import DatasetError
from tests.data import conftest as styles
from tests.data.conftest import CALCULATOR, MakeTokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
TURN: list[dict[str, Any]] = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}]


@pytest.fixture(scope="module")
def template(make_tokenizer: MakeTokenizer) -> ChatTemplate:
    return ChatTemplate(make_tokenizer(styles.CHATML_TOOLS))


def learnt(template: ChatTemplate, example: Any) -> str:
    ids, mask = example
    return str(template.tokenizer.decode([i for i, kept in zip(ids, mask, strict=True) if kept]))


def test_learns_what_assistants_say_with_tools_in_view(template: ChatTemplate) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": TURN, "tools": [CALCULATOR]},
        {"messages": json.dumps(TURN), "tools": json.dumps([CALCULATOR])},
    ]
    data = SFTDataset(rows, template, max_length=400)
    assert data[0] == data[1] == template.conversation(TURN, [CALCULATOR])
    assert "calculator" in template.tokenizer.decode(data[0][0])
    assert learnt(template, data[0]) == "5<|im_end|>"


def test_right_keeps_whole_turns_from_the_beginning(template: ChatTemplate) -> None:
    whole, _ = template.conversation([SYSTEM, *TURN])
    rows = [{"messages": [SYSTEM, *TURN, *TURN, *TURN]}]
    [example] = SFTDataset(rows, template, max_length=len(whole) + 5, truncation="right")
    assert example[0] == whole
    [example] = SFTDataset([{"messages": TURN}], template, max_length=len(whole) - 1, truncation="right")
    assert len(example[0]) <= len(whole) - 1


def test_left_keeps_the_system_message_and_the_last_turns(template: ChatTemplate) -> None:
    last = [{"role": "user", "content": "What is 2 + 4?"}, {"role": "assistant", "content": "6"}]
    whole, _ = template.conversation([SYSTEM, *last])
    rows = [{"messages": [SYSTEM, *TURN, *TURN, *last]}]
    [example] = SFTDataset(rows, template, max_length=len(whole) + 5, truncation="left")
    assert example[0] == whole
    [example] = SFTDataset(rows, template, max_length=8, truncation="left")
    assert len(example[0]) == 8
    assert learnt(template, example) == "6<|im_end|>"


def test_error_and_drop(template: ChatTemplate, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"messages": TURN}, {"messages": [*TURN, *TURN, *TURN]}]
    room = len(template.conversation(TURN)[0])
    with pytest.raises(DatasetError, match=rf"row 1 has \d+ tokens, more than data.max_length={room}"):
        SFTDataset(rows, template, max_length=room)
    assert len(SFTDataset(rows, template, max_length=room, truncation="drop")) == 1
    assert "1 of 2 conversations" in caplog.text
    with pytest.raises(DatasetError, match="all 2 conversations are longer"):
        SFTDataset(rows, template, max_length=5, truncation="drop")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, r"no column 'messages' \(data.messages_key\); they have text"),
        ({"messages": [TURN[0]]}, "row 0 teaches nothing"),
        ({"messages": TURN[1:]}, "row 0: a conversation begins with"),
        ({"messages": [{"content": "x"}]}, "row 0: messages holds"),
        ({"messages": TURN, "tools": "calculator"}, "row 0: tools is no list of tool schemas"),
    ],
)
def test_rows_that_cannot_be_used_are_named(template: ChatTemplate, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        SFTDataset([row], template, max_length=100)
    with pytest.raises(DatasetError, match="no conversations"):
        SFTDataset([], template, max_length=100)
