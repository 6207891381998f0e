"""Prompts that are too long are refused, dropped, or shortened by whole messages first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.data.chat_template import ChatTemplate
from agentverl.data.datasets import RowDataset
from agentverl.data.overlong import fit_prompts, shorten
from agentverl.errors import DatasetError
from agentverl.messages import Message
from tests.data import conftest as styles
from tests.data.conftest import MakeTokenizer

SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture(scope="module")
def template(make_tokenizer: MakeTokenizer) -> ChatTemplate:
    return ChatTemplate(make_tokenizer(styles.CHATML_TOOLS))


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def rows_of(*prompts: list[Message]) -> RowDataset:
    return RowDataset([{"raw_prompt": prompt, "index": i} for i, prompt in enumerate(prompts)])


def test_error_names_the_row_and_what_would_work(template: ChatTemplate) -> None:
    rows = rows_of([said("user", "x")], [said("user", "abc " * 100)])
    with pytest.raises(DatasetError, match=r"prompt of row 1 has \d+ tokens, more than data.max_prompt_length=60"):
        fit_prompts(rows, template, max_prompt_length=60, policy="error")
    assert len(fit_prompts(rows, template, max_prompt_length=1000, policy="error")) == 2


def test_drop_leaves_out_what_is_too_long(template: ChatTemplate, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of([said("user", "abc " * 100)], [said("user", "x")])
    kept = fit_prompts(rows, template, max_prompt_length=60, policy="drop")
    assert [row["index"] for row in kept] == [1]
    assert "1 dropped, 0 shortened" in caplog.text
    with pytest.raises(DatasetError, match="all 2 prompts are longer"):
        fit_prompts(rows, template, max_prompt_length=5, policy="drop")


def test_tools_count(template: ChatTemplate) -> None:
    rows = rows_of([said("user", "x")])
    bare = len(template.prompt(rows[0]["raw_prompt"]))
    with pytest.raises(DatasetError):
        fit_prompts(rows, template, max_prompt_length=bare, policy="error", tools=[styles.CALCULATOR])


@pytest.mark.parametrize(("side", "kept"), [("left", ["c", "d", "e"]), ("right", ["a", "b", "c"])])
def test_whole_messages_go_first_and_the_system_message_stays(
    template: ChatTemplate, side: Any, kept: list[str]
) -> None:
    names = ["a", "b", "c", "d", "e"]
    roles = ["user", "assistant"] * 3
    messages = [SYSTEM, *(said(role, name * 40) for role, name in zip(roles, names, strict=False))]
    room = len(template.prompt([SYSTEM, *messages[1:4]])) + 3
    shorter = shorten(messages, template, room, side)
    assert shorter[0] == SYSTEM
    assert [message["content"][0] for message in shorter[1:]] == kept
    assert all(len(message["content"]) == 40 for message in shorter[1:])


def test_an_answer_does_not_outlive_its_question(template: ChatTemplate) -> None:
    messages = [said("user", "a" * 200), said("assistant", "b"), said("tool", "c"), said("user", "d")]
    assert shorten(messages, template, 40, "left") == [said("user", "d")]
    messages = [said("user", "a"), said("assistant", "b"), said("user", "c" * 200)]
    assert shorten(messages, template, 40, "right") == [said("user", "a")]


@given(text=st.text(alphabet="abc 12\n✓é", min_size=60, max_size=200), side=st.sampled_from(["left", "right"]))
def test_the_last_message_is_cut_to_what_fits(template: ChatTemplate, text: str, side: Any) -> None:
    text += "." * 60
    room = len(template.prompt([SYSTEM, said("user", "")])) + 20
    shorter = shorten([SYSTEM, said("user", text)], template, room, side)
    kept = shorter[1]["content"]
    assert text.endswith(kept) if side == "left" else text.startswith(kept)
    assert room - 6 <= len(template.prompt(shorter)) <= room


def test_a_system_message_alone_too_long_is_an_error(template: ChatTemplate) -> None:
    with pytest.raises(DatasetError, match="system message and tools alone"):
        shorten([said("system", "abc " * 100), said("user", "x")], template, 50, "left")


def test_rows_whose_prompt_comes_from_the_environment_pass(template: ChatTemplate) -> None:
    rows = RowDataset([{"index": 0}])
    assert fit_prompts(rows, template, max_prompt_length=5, policy="error")[0] == {"index": 0}


def test_a_shortened_row_keeps_its_other_fields(template: ChatTemplate) -> None:
    rows = rows_of([said("user", "x")], [said("user", "abc " * 100)])
    kept = fit_prompts(rows, template, max_prompt_length=60, policy="left")
    assert [row["index"] for row in kept] == [0, 1]
    assert len(template.prompt(kept[1]["raw_prompt"])) <= 60
    assert rows[1]["raw_prompt"] == [said("user", "abc " * 100)]
