"""Sampling parameters are checked when they come in."""

from typing import Any

import pytest

from agentverl.errors import BadInputError
from agentverl.rollout.replica import SamplingParams


def test_values_are_coerced_where_nothing_is_lost() -> None:
    params = SamplingParams.from_mapping(
        {"temperature": 0, "top_k": 5.0, "stop": "x", "stop_token_ids": [3], "max_new_tokens": 7, "seed": None}
    )
    assert params == SamplingParams(temperature=0.0, top_k=5, stop=("x",), stop_token_ids=(3,), max_tokens=7)
    assert params.bends_distribution


def test_a_temperature_alone_bends_nothing() -> None:
    assert not SamplingParams(temperature=0.6, seed=3, stop=("x",)).bends_distribution


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"temprature": 1.0}, "unknown sampling parameters temprature; known are .*temperature"),
        ({"temperature": -1}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0}, "top_p=0.0: expected above 0"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_k": 1.5}, "top_k=1.5 has the wrong type"),
        ({"min_p": 2}, "min_p=2.0"),
        ({"repetition_penalty": 0}, "repetition_penalty=0.0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"stop": [""]}, "stop="),
        ({"stop": [3]}, "stop=.* has the wrong type"),
        ({"stop_token_ids": [-1]}, "stop_token_ids="),
        ({"ignore_eos": 1}, "ignore_eos=1 has the wrong type"),
        ({"temperature": True}, "temperature=True has the wrong type"),
        ({"temperature": "hot"}, "temperature='hot' has the wrong type"),
    ],
)
def test_wrong_values_are_named(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        SamplingParams.from_mapping(mapping)
