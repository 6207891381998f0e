"""Answers are found in texts as models write them."""

from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.rewards.final_answer import Extraction, as_number, boxed, extract, last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("37 * 48 = 1776", "1776"),
        ("The answer is 1,776.", "1776"),
        ("It is -4", "-4"),
        ("It is \N{MINUS SIGN}4.", "-4"),
        ("5-3", "3"),
        ("(5)-3", "3"),
        ("x=-3", "-3"),
        ("$1,234.50", "1234.5"),
        ("**42**", "42"),
        ("0.5 then .25", "0.25"),
        ("1e3", "1000"),
        ("1, 2, 3", "3"),
        ("12,345678", "345678"),
        ("version A5", None),
        ("none", None),
        ("", None),
        ("10km", "10"),
        ("1776.0", "1776"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "The answer is {}.", "= {}", "so:\n{}\n", "`{}`"]))
def test_reads_integers_however_they_are_written(number: int, form: str) -> None:
    assert last_number(form.format(number)) == number
    assert last_number(form.format(f"{number:,}")) == number


@given(st.text(alphabet="01,.-eE x\n\\boxed{}<answer>/", max_size=80))
def test_never_fails(text: str) -> None:
    for how in get_args(Extraction):
        answer = extract(text, how, "3")
        assert answer is None or isinstance(answer, str)


@pytest.mark.parametrize(
    ("text", "how", "truth", "answer"),
    [
        ("<answer>a</answer> no <answer> b </answer> 3", "tag", None, "b"),
        ("no tag", "tag", None, None),
        (r"so \boxed{\frac{1}{2}} ok", "boxed", None, r"\frac{1}{2}"),
        (r"cut \boxed{\frac{1}", "boxed", None, None),
        ("x\ny \n\n", "line", None, "y"),
        ("  x y ", "text", None, "x y"),
        ("1 2 -1,300.50", "number", None, "-1300.50"),
        ("it is 1,300", "auto", "1300", "1300"),
        ("3 <answer>x</answer> 4", "auto", "1300", "x"),
        ("first\nthe cat", "auto", "the cat", "the cat"),
    ],
)
def test_extracts(text: str, how: Extraction, truth: str | None, answer: str | None) -> None:
    assert extract(text, how, truth) == answer


def test_a_number_as_a_whole() -> None:
    assert as_number(" -1,776.50 ") == Decimal("-1776.5")
    assert as_number("1776 apples") is None


def test_an_empty_box() -> None:
    assert boxed(r"\boxed{}") == ""
