"""The built-in scorers, called directly."""

import json
from typing import Any

import pytest

from agentverl import plugins
from agentverl.errors import PluginError
from agentverl.rewards import gsm8k, math_verify, reasoning_gym
from agentverl.rewards.data_sources import default_compute_score, scorer_name


@pytest.mark.parametrize(
    ("solution", "method", "score"),
    [
        ("so 40 + 32 = 72\n#### 72", "strict", 1.0),
        ("#### 70 no, #### 72.00", "strict", 1.0),
        ("#### $72.", "strict", 1.0),
        ("#### 71", "strict", 0.1),
        ("it is 72", "strict", 0.0),
        ("it is 72", "flexible", 1.0),
        ("it is 72 of 100", "flexible", 0.1),
        ("no number", "flexible", 0.0),
    ],
)
def test_gsm8k(solution: str, method: Any, score: float) -> None:
    assert gsm8k.compute_score("openai/gsm8k", solution, "72", method=method, format_score=0.1) == score


def test_gsm8k_reads_a_whole_solution_as_truth() -> None:
    assert gsm8k.compute_score("openai/gsm8k", "#### 1,000", "5 * 200 = 1000\n#### 1000") == 1.0
    with pytest.raises(ValueError, match="holds no number"):
        gsm8k.compute_score("openai/gsm8k", "#### 1", "?")


@pytest.mark.parametrize(
    ("solution", "truth", "score"),
    [
        (r"so \boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{x^2+2x+1}", r"(x+1)^2", 1.0),
        (r"\boxed{3}", "4", 0.0),
        ("nothing", "4", 0.0),
        ("it is 4", r"\boxed{4}", 1.0),
    ],
)
def test_math_verify(solution: str, truth: str, score: float) -> None:
    assert math_verify.compute_score("lighteval/MATH", solution, truth)["score"] == score


def test_reasoning_gym_uses_the_verifier_of_the_dataset() -> None:
    entry = {"question": "4 - 1 - 7 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum"}}
    for held in (entry, json.dumps(entry)):
        result = reasoning_gym.compute_score("reasoning_gym/chain_sum", "it is -4.", "-4", {"entry": held})
        assert result == {"score": 1.0, "acc": 1.0, "pred": "-4"}
    result = reasoning_gym.compute_score(
        "reasoning_gym/chain_sum", "calls with -4", "-4", {"entry": entry}, final_message=""
    )
    assert result["score"] == 0.0
    with pytest.raises(PluginError, match="'no_such' not registered"):
        reasoning_gym.compute_score("reasoning_gym/no_such", "1", "1")


@pytest.mark.parametrize(
    ("data_source", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math_verify"),
        ("HuggingFaceH4/MATH-500", "math_verify"),
        ("aime2025", "math_verify"),
        ("numina_olympiads", "math_verify"),
        ("reasoning_gym/chain_sum", "reasoning_gym"),
        ("gsm8k", "gsm8k"),
    ],
)
def test_data_sources_find_their_scorer(data_source: str, name: str) -> None:
    assert scorer_name(data_source) == name


def test_an_unknown_data_source_says_what_would_work() -> None:
    with pytest.raises(
        PluginError, match=r"for data_source 'mine'; name one with reward\.custom_reward_function\.path"
    ):
        default_compute_score("mine", "1", "1")
    assert default_compute_score("openai/gsm8k", "#### 3", "3") == 1.0


@pytest.mark.parametrize("name", [name for name, _ in plugins.installed("rewards")])
def test_every_installed_reward_loads(name: str) -> None:
    assert callable(plugins.find("rewards", name))
