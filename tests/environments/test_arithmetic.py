"""Arithmetic: problems, splits and scores."""

import pytest

from agentverl.environments.arithmetic import Arithmetic
from agentverl.environments.base import EnvironmentContext
from agentverl.environments.loading import EnvironmentSpec, reset
from agentverl.errors import SettingsError


def test_splits_are_disjoint_and_hold_every_problem_once() -> None:
    splits = {
        split: {str(task.prompt) for task in Arithmetic.tasks(split, size, 0)}
        for split, size in (("train", 25000), ("val", 2800))
    }
    assert len(splits["train"]) == 25000
    assert len(splits["val"]) == 2800
    assert not splits["train"] & splits["val"]


def test_splits_stay_disjoint_whatever_the_seeds() -> None:
    train = {task.prompt[0]["content"] for task in Arithmetic.tasks("train", 4096, 1)}
    held_out = {task.prompt[0]["content"] for task in Arithmetic.tasks("val", 256, 7)}
    assert not train & held_out


def test_the_same_arguments_give_the_same_tasks() -> None:
    assert Arithmetic.tasks("val", 20, 3) == Arithmetic.tasks("val", 20, 3)
    assert Arithmetic.tasks("val", 20, 3) != Arithmetic.tasks("val", 20, 4)


def test_rows_have_verl_s_columns() -> None:
    row = EnvironmentSpec.find("arithmetic").rows("train", 3, 0)[2]
    fields = row["environment_kwargs"]
    assert row["raw_prompt"] == [
        {"role": "user", "content": f"What is {fields['left']} {fields['operator']} {fields['right']}?"}
    ]
    assert row["reward_model"]["ground_truth"] == str(
        {"+": fields["left"] + fields["right"], "-": fields["left"] - fields["right"]}.get(
            fields["operator"], fields["left"] * fields["right"]
        )
    )
    assert (row["data_source"], row["environment"]) == ("arithmetic", "arithmetic")
    assert row["extra_info"] == {"index": 2, "split": "train"}


def test_settings_bound_the_problems() -> None:
    spec = EnvironmentSpec.find("arithmetic", {"minimum": 1, "maximum": 3, "operators": "+"})
    with pytest.raises(SettingsError, match="fewer than the 100 asked for"):
        spec.rows("train", 100, 0)
    problems = [row["environment_kwargs"] for row in spec.rows("train", 5, 0)]
    assert all(problem["operator"] == "+" and 1 <= problem["left"] <= 3 for problem in problems)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("37 * 48 = 1776", 1.0),
        ("The answer is 1,776.", 1.0),
        ("1776.0", 1.0),
        ("1776 or 1775", 0.0),
        ("-1776", 0.0),
        ("", 0.0),
        ("a lot", 0.0),
    ],
)
async def test_scores_the_last_number_of_the_final_answer(answer: str, score: float) -> None:
    spec = EnvironmentSpec.find("arithmetic")
    context = EnvironmentContext()
    environment = spec.create(context)
    observation = await reset(environment, context, {"left": 37, "operator": "*", "right": 48})
    assert observation.messages[0]["content"] == "What is 37 * 48?"
    context.messages = [*observation.messages, {"role": "assistant", "content": answer}]
    assert await environment.score() == {"score": score, "acc": score}


async def test_a_number_in_a_tool_s_answer_is_no_answer() -> None:
    context = EnvironmentContext()
    environment = EnvironmentSpec.find("arithmetic").create(context)
    await reset(environment, context, {"left": 2, "operator": "-", "right": 9})
    for last in ({"role": "tool", "content": "-7"}, {"role": "assistant", "content": "-7", "tool_calls": [{}]}):
        context.messages = [last]
        assert await environment.score() == {"score": 0.0, "acc": 0.0}
