"""Scorers of answers as texts: matches, choices, forms, lengths, repetitions, JSON."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl import plugins
from agentverl.errors import PluginError
from agentverl.rewards import (
    exact_match,
    format,
    fuzzy_match,
    json_schema,
    length,
    multiple_choice,
    repetition,
    search_r1,
)
from agentverl.rewards.data_sources import SCORERS, compares_with_truth, default_compute_score, scorer_name
from tests.rewards.conftest import sequence_of


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("The answer is\nParis.", "paris", 1.0),
        ("<answer>The Eiffel Tower!</answer>", "eiffel tower", 1.0),
        ("So it is 1,776.", 1776, 1.0),
        ("It is 12", "2", 0.0),
        ("London", ["Paris", "London"], 1.0),
        ("Paris", {"target": ["Rome", "paris"]}, 1.0),
        ("?!", "...", 0.0),
        ("...", "...", 1.0),
        ("a", "The", 0.0),
        ("the", "The", 1.0),
        ("", "x", 0.0),
    ],
)
def test_exact_match(text: str, truth: Any, score: float) -> None:
    assert exact_match.compute_score("d", text, truth)["score"] == score


def test_exact_match_as_written() -> None:
    assert exact_match.compute_score("d", "Paris", "paris", strict=True)["score"] == 0.0
    assert exact_match.compute_score("d", "call", "paris", final_message="paris", strict=True)["score"] == 1.0
    empty: list[Any] = [None, "", [], {"target": None}]
    for nothing in empty:
        with pytest.raises(ValueError, match="holds no answer"):
            exact_match.compute_score("d", "x", nothing)


def test_fuzzy_match() -> None:
    assert fuzzy_match.compute_score("d", "Johann Sebastian Bach", "johann sebastian bach")["score"] == 1.0
    near = fuzzy_match.compute_score("d", "Johan Sebastian Bach", "Johann Sebastian Bach")
    assert 0.9 < near["score"] < 1.0
    assert fuzzy_match.compute_score("d", "Mozart", "Johann Sebastian Bach", threshold=0.8)["score"] == 0.0
    assert fuzzy_match.compute_score("d", "?!", "...")["score"] == 0.0
    everything = "Bach Mozart Haydn Beethoven Schubert Brahms Mahler"
    assert fuzzy_match.compute_score("d", everything, "Haydn")["score"] < 0.3


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("The answer is B.", "B", 1.0),
        ("Answer: (b) no\nAnswer: (C)", "C", 1.0),
        (r"\boxed{\text{D}}", "D", 1.0),
        ("**A**", 0, 1.0),
        ("<answer>B</answer>", "(B)", 1.0),
        ("A good reason leads to option D", "D", 1.0),
        ("Answer: A, B, C or D", "B", 0.0),
        ("A B C D", "D", 0.0),
        ("Because", "B", 0.0),
        ("", "B", 0.0),
    ],
)
def test_multiple_choice(text: str, truth: Any, score: float) -> None:
    assert multiple_choice.compute_score("d", text, truth)["score"] == score


def test_a_truth_that_is_no_option_is_refused() -> None:
    for truth in ("Paris", 12, None, True):
        with pytest.raises(ValueError, match="no letter"):
            multiple_choice.compute_score("d", "A", truth)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a</think>\n<answer>b</answer>", 1.0),
        ("<think>a</think><answer>b</answer> and more", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think>a<answer>b</answer></think>", 0.0),
        ("", 0.0),
    ],
)
def test_format_by_tags(text: str, score: float) -> None:
    assert format.compute_score("d", text, tags=["think", "answer"]) == score


def test_format_by_pattern_ends_also_where_matching_would_not() -> None:
    assert format.compute_score("d", "x", final_message="Answer: 42", pattern=r"Answer: -?\d+") == 1.0
    assert format.compute_score("d", "Answer: 42!", pattern=r"Answer: -?\d+") == 0.0
    started = time.monotonic()
    assert format.compute_score("d", "a" * 5000 + "!", pattern=r"((a+)+b?)+c") == 0.0
    assert time.monotonic() - started < 10
    with pytest.raises(ValueError, match="no regular expression"):
        format.compute_score("d", "x", pattern="(")
    with pytest.raises(ValueError, match="it needs tags or a pattern"):
        format.compute_score("d", "x")


def test_length() -> None:
    scores = [
        length.compute_score("d", "x" * count, None, minimum=10, maximum=20, falloff=10)
        for count in (0, 5, 10, 20, 25, 40)
    ]
    assert scores == [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
    with pytest.raises(ValueError, match="minimum=3"):
        length.compute_score("d", "x", None, minimum=3, maximum=2)
    judged: dict[str, Any] = {"trajectory": [sequence_of(length=18), sequence_of(length=3)], "limit": 20, "buffer": 4}
    assert length.overlong("d", "", None, **judged) == -0.5
    with pytest.raises(ValueError, match="buffer=40"):
        length.overlong("d", "", None, **{**judged, "buffer": 40})


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=40), st.integers(1, 4))
def test_repetition_is_between_no_and_the_whole_penalty(words: list[str], size: int) -> None:
    score = repetition.compute_score("d", " ".join(words), ngram_size=size, max_penalty=0.5)
    assert -0.5 < score <= 0.0


def test_repetition() -> None:
    assert repetition.compute_score("d", "one two three four") == 0.0
    assert repetition.compute_score("d", "one two three " * 50) < -0.9
    with pytest.raises(ValueError, match="ngram_size=0"):
        repetition.compute_score("d", "x", ngram_size=0)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"n": 1}', 1.0),
        ('Here:\n```json\n{"n": 1}\n```\n', 1.0),
        ('{"n": "1"}', 0.1),
        ('{"n": 1, "m": 2}', 0.1),
        ("[" * 100_000, 0.0),
        ("NaN", 0.0),
        ('{"n": 1} and more', 0.0),
        ("", 0.0),
    ],
)
def test_json_schema(text: str, score: float) -> None:
    places: list[dict[str, Any]] = [{"schema": SCHEMA}, {"extra_info": {"schema": SCHEMA}}]
    for place in places:
        assert json_schema.compute_score("d", text, None, parsed_score=0.1, **place)["score"] == score


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON schema: set"):
        json_schema.compute_score("d", "{}", None)
    with pytest.raises(ValueError, match="is no JSON schema"):
        json_schema.compute_score("d", "{}", '{"type": "nothing"}')


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<answer>The Beatles</answer>", 1.0),
        ("<answer>Elvis</answer> no: <answer>beatles.</answer>", 1.0),
        ("<answer>beatles</answer> no: <answer>Elvis</answer>", 0.2),
        ("the Beatles", 0.0),
        ("<answer>the band Beatles</answer>", 0.2),
        ("<answer>x</answer>" * 10 + "<answer>Beatles</answer>", 0.25),
    ],
)
def test_search_r1(text: str, score: float) -> None:
    truth = {"target": ["Beatles", "The Fab Four"]}
    assert search_r1.compute_score("searchR1_nq", text, truth, format_score=0.2)["score"] == score
    if score == 0.2 and "band" in text:
        assert search_r1.compute_score("searchR1_nq", text, truth, contains=True)["score"] == 1.0


@pytest.mark.parametrize(("text", "score"), [("", 0.0), ("an", 0.0), ("?", 0.0), ("The", 1.0)])
@pytest.mark.parametrize("contains", [False, True])
def test_nothing_is_no_answer_where_the_truth_is_an_article(text: str, score: float, contains: bool) -> None:
    answer = f"<answer>{text}</answer>"
    assert search_r1.compute_score("searchR1_nq", answer, {"target": ["the"]}, contains=contains)["score"] == score


def test_every_data_source_of_verl_has_a_scorer() -> None:
    for source in [*SCORERS, "aime2024", "numina_olympiads", "searchR1_hotpotqa", "reasoning_gym/leg_counting"]:
        name = scorer_name(source.replace("*", "x"))
        assert callable(plugins.find("rewards", name))
    assert scorer_name("searchR1_nq") == "search_r1"
    assert compares_with_truth("codecontests")
    assert not compares_with_truth("format")
    with pytest.raises(PluginError, match="no reward function for data_source 'unheard of'"):
        scorer_name("unheard of")


def test_the_default_is_called_from_scripts_also_where_it_is_asynchronous() -> None:
    assert default_compute_score("openai/gsm8k", "#### 4", "4") == 1.0
    result = default_compute_score("codecontests", "no code", {"inputs": ["1"], "outputs": ["1"]})
    assert isinstance(result, dict)
    assert result["problem"] == "no code block"


def test_geometry3k_adds_the_form_to_the_answer() -> None:
    scorer = plugins.find("rewards", "geometry3k")
    assert scorer("g", r"<think>so</think> \boxed{5}", "5")["score"] == 1.0
    assert scorer("g", r"\boxed{5}", "5")["score"] == 0.9
    assert scorer("g", r"<think>so</think> \boxed{6}", "5")["score"] == pytest.approx(0.1)
