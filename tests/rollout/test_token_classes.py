"""Tokens of a turn are sorted by what the tool parser sees in their text."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentverl.data.hermes import HermesToolParser
from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.rollout.token_classes import TOKEN_CLASSES, TokenClasses

TOKENIZER = load_tokenizer(resolve_model_path("nano").path)
CLASSES = TokenClasses(TOKENIZER, HermesToolParser())
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2*3"}}\n</tool_call>'


def classes_of(text: str) -> list[tuple[str, str]]:
    """(class, text) of each stretch of tokens of the same class."""
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    stretches: list[tuple[str, str]] = []
    for token, number in zip(ids, CLASSES.of_turn(ids), strict=True):
        name, piece = TOKEN_CLASSES[number], TOKENIZER.decode([token])
        if stretches and stretches[-1][0] == name:
            stretches[-1] = (name, stretches[-1][1] + piece)
        else:
            stretches.append((name, piece))
    return stretches


def test_reasoning_calls_arguments_and_answers_are_told_apart() -> None:
    found = classes_of(f"<think>easy</think>I compute. {CALL}")
    assert [name for name, _ in found] == ["reasoning", "answer", "call_syntax", "arguments", "call_syntax"]
    assert "easy" in found[0][1]
    assert "I compute." in found[1][1]
    assert '"arguments": {"' in found[2][1]  # a token belongs to where it begins
    assert "expression" in found[3][1]


def test_a_plain_turn_is_an_answer_with_what_ends_it() -> None:
    assert [name for name, _ in classes_of("Answer: 6<|im_end|>")] == ["answer"]
    assert [name for name, _ in classes_of(f"{CALL}<|im_end|>")] == ["call_syntax", "arguments", "call_syntax"]


def test_broken_arguments_reach_to_the_end_of_their_call() -> None:
    found = classes_of('<tool_call>{"name": "calculator", "arguments": {"expression')
    assert [name for name, _ in found] == ["call_syntax", "arguments"]


def test_each_turn_of_a_sequence_is_looked_at_by_itself() -> None:
    call, answer, observed = (TOKENIZER.encode(text, add_special_tokens=False) for text in (CALL, "6", "<think>6"))
    turns = np.array([0] * len(call) + [-1] * len(observed) + [1] * len(answer))
    classes = CLASSES.of_row(np.array([*call, *observed, *answer]), turns).tolist()
    assert classes == [*CLASSES.of_turn(call), *[-1] * len(observed), *CLASSES.of_turn(answer)]
    assert classes[-1] == TOKEN_CLASSES.index("answer")


@given(
    st.lists(
        st.sampled_from([*'{}: ,"', "<think>", "</think>", "<tool_call>", "</tool_call>", '"arguments"', "a", "7"])
    )
)
def test_every_token_has_a_class_whatever_the_model_wrote(pieces: list[str]) -> None:
    ids = TOKENIZER.encode("".join(pieces), add_special_tokens=False)
    classes = CLASSES.of_turn(ids)
    assert len(classes) == len(ids)
    assert set(classes) <= set(range(len(TOKEN_CLASSES)))
