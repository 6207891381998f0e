"""reasoning_gym as an environment: tasks, mixes, splits and verifiers."""

import json
from typing import Any

import pytest

from agentverl.environments.base import EnvironmentContext
from agentverl.environments.loading import EnvironmentSpec, reset
from agentverl.errors import SettingsError

CHAIN_SUM = {"dataset": "chain_sum", "config": {"min_terms": 2, "max_terms": 2}}
MIX = {"datasets": [{"name": "chain_sum", "weight": 3}, {"name": "leg_counting"}]}


def spec_of(settings: dict[str, Any]) -> EnvironmentSpec:
    return EnvironmentSpec.find("reasoning_gym", settings)


async def score(spec: EnvironmentSpec, row: dict[str, Any], answer: str) -> Any:
    context = EnvironmentContext()
    environment = spec.create(context)
    observation = await reset(environment, context, row["environment_kwargs"])
    assert observation.messages == row["raw_prompt"]
    context.messages = [*observation.messages, {"role": "assistant", "content": answer}]
    return await environment.score()


async def test_scores_with_the_dataset_s_own_verifier() -> None:
    spec = spec_of(CHAIN_SUM)
    row = spec.rows("train", 2, 0)[1]
    truth = row["reward_model"]["ground_truth"]
    assert row["data_source"] == "reasoning_gym/chain_sum"
    assert await score(spec, row, f"I think it is {truth}.") == {"score": 1.0, "acc": 1.0}
    near = await score(spec, row, f"I think it is {truth}1.")
    assert (near["score"] < 1.0, near["acc"]) == (True, 0.0)
    assert await score(spec, row, "") == {"score": 0.0, "acc": 0.0}


def test_tasks_are_deterministic_and_splits_disjoint() -> None:
    spec = spec_of(CHAIN_SUM)
    train, again = spec.rows("train", 300, 0), spec.rows("train", 300, 0)
    assert train == again
    held_out = {row["raw_prompt"][0]["content"] for row in spec.rows("val", 60, 0)}
    assert not held_out & {row["raw_prompt"][0]["content"] for row in train}
    assert spec.rows("train", 3, 1) != train[:3]


async def test_a_mix_draws_from_each_dataset_and_may_ask_for_tags() -> None:
    spec = spec_of({**MIX, "instruction": "Put the answer in <answer></answer>.", "extraction": "tag"})
    rows = spec.rows("train", 40, 0)
    sources = [row["data_source"] for row in rows]
    assert 0 < sources.count("reasoning_gym/leg_counting") < sources.count("reasoning_gym/chain_sum")
    truth = rows[0]["reward_model"]["ground_truth"]
    assert rows[0]["raw_prompt"][0]["content"].endswith("\nPut the answer in <answer></answer>.")
    assert (await score(spec, rows[0], f"<answer>{truth}</answer>"))["score"] == 1.0
    assert (await score(spec, rows[0], truth))["score"] == 0.0


def test_the_task_is_plain_data() -> None:
    (row,) = spec_of({"dataset": "gsm_symbolic"}).rows("val", 1, 0)
    assert json.loads(json.dumps(row)) == row
    assert json.loads(row["environment_kwargs"]["entry"])["answer"] == row["reward_model"]["ground_truth"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "set either dataset .with config. or datasets"),
        ({**CHAIN_SUM, **MIX}, "set either dataset"),
        ({**MIX, "config": {"min_terms": 2}}, "config belongs to dataset"),
        ({"datset": "chain_sum"}, "key 'datset' is unknown .did you mean 'dataset"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        spec_of(settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dataset": "chain_sums"}, "refuses chain_sums: Dataset 'chain_sums' not registered"),
        ({"dataset": "chain_sum", "config": {"terms": 2}}, "refuses chain_sum: .*unexpected keyword argument 'terms'"),
        ({"dataset": "chain_sum", "config": {"min_terms": 0}}, "refuses chain_sum: min_terms must be positive"),
    ],
)
def test_what_reasoning_gym_refuses_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        spec_of(settings).rows("train", 1, 0)
