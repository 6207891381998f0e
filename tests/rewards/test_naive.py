"""A trajectory gets a score or a reason, never a silent 0."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentverl.deadlines import Deadline
from agentverl.errors import BoundaryError, DeadlineError, InfrastructureError, PluginError, SettingsError
from agentverl.rewards.base import RewardInput, numbers
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.rewards.scorer import as_result
from agentverl.settings.reward import RewardSettings
from agentverl.trajectory import AgentLoopOutput

MODULE = """
import asyncio, time
from agentverl.errors import InfrastructureError
from agentverl.rewards.process_pool import killable

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

def scaled(data_source, solution_str, ground_truth, extra_info, scale=1.0):
    return {"score": scale, "turns": extra_info["num_turns"], "pred": solution_str}

async def judge(data_source, solution_str, ground_truth, final_message, messages, **kwargs):
    await asyncio.sleep(0)
    return {"score": 0.5, "final": final_message, "seen": sorted(kwargs)}

def raises(data_source, solution_str, ground_truth):
    raise ZeroDivisionError("no")

def nan(data_source, solution_str, ground_truth):
    return float("nan")

def text(data_source, solution_str, ground_truth):
    return "good"

def nothing(data_source, solution_str, ground_truth):
    return None

def no_score(data_source, solution_str, ground_truth):
    return {"acc": 1.0}

def hangs(data_source, solution_str, ground_truth):
    time.sleep(2)

async def hangs_async(data_source, solution_str, ground_truth):
    await asyncio.sleep(60)

def times_out_itself(data_source, solution_str, ground_truth):
    raise TimeoutError("its own")

def lost(data_source, solution_str, ground_truth):
    raise InfrastructureError("judge is down", "reward")

@killable(minimum_score=-1.0)
def bomb(data_source, solution_str, ground_truth):
    if solution_str == "spin":
        while True:
            pass
    if solution_str == "raise":
        raise ValueError("bad truth")
    return 1.0

def wrong_signature(solution, truth):
    return 1.0

number = 3
"""

ANSWER = RewardInput(data_source="mine", solution_str="4", ground_truth="4", final_message="it is 4")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my_reward.py"
    path.write_text(MODULE)
    return str(path)


def manager(file: str, name: str = "compute_score", **settings: Any) -> NaiveRewardManager:
    return NaiveRewardManager(RewardSettings(custom_reward_function={"path": file, "name": name}, **settings))


async def test_calls_the_configured_function(file: str) -> None:
    result = await manager(file).score(ANSWER)
    assert result.score == 1.0
    assert 0 < result.seconds < 1


async def test_a_dict_gives_components_and_settings_reach_the_function(file: str) -> None:
    judged = RewardInput(
        data_source="mine",
        solution_str="4",
        trajectory=[AgentLoopOutput(prompt_ids=[1], response_ids=[], response_mask=[], num_turns=5)],
    )
    result = await manager(file, "scaled", reward_kwargs={"scale": 3}).score(judged)
    assert result.score == 3.0
    assert result.components == {"turns": 5, "pred": "4"}


async def test_an_asynchronous_function_sees_messages_and_trajectory(file: str) -> None:
    result = await manager(file, "judge").score(ANSWER)
    assert result.components == {"final": "it is 4", "seen": ["extra_info", "full_text", "trajectory"]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raises failed: ZeroDivisionError: no"),
        ("nan", "returned nan; a score must be finite"),
        ("text", "returned str 'good'; expected a number"),
        ("nothing", "returned NoneType 'None'; expected a number"),
        ("no_score", "returned a dict without `score` .its keys: acc"),
        ("times_out_itself", "failed: TimeoutError: its own"),
    ],
)
async def test_what_is_no_score_is_an_error_with_its_reason(file: str, name: str, said: str) -> None:
    with pytest.raises(BoundaryError, match=said) as caught:
        await manager(file, name).score(ANSWER)
    assert caught.value.boundary == "reward"
    assert not isinstance(caught.value, DeadlineError)


@pytest.mark.parametrize("name", ["hangs", "hangs_async"])
async def test_a_hang_ends_at_the_nearer_deadline(file: str, name: str) -> None:
    with pytest.raises(DeadlineError, match=r"no answer within 0\.1 seconds") as caught:
        await manager(file, name, timeout_seconds=0.1).score(ANSWER)
    assert caught.value.boundary == "reward"
    with pytest.raises(DeadlineError):
        await manager(file, name, timeout_seconds=60).score(ANSWER, Deadline.after(0.05))


async def test_an_infrastructure_error_stays_one(file: str) -> None:
    with pytest.raises(InfrastructureError, match="judge is down"):
        await manager(file, "lost").score(ANSWER)


async def test_only_an_answer_that_twice_exhausts_a_killable_scorer_gets_the_minimum(file: str) -> None:
    judge = manager(file, "bomb", timeout_seconds=0.3, num_workers=1)
    try:
        assert (await judge.score(ANSWER)).score == 1.0
        result = await judge.score(RewardInput(data_source="mine", solution_str="spin"))
        assert (result.score, result.components) == (-1.0, {"scorer_out_of_time": 1.0})
        assert result.seconds > 0.6
        with pytest.raises(BoundaryError, match="bad truth"):
            await judge.score(RewardInput(data_source="mine", solution_str="raise"))
        assert (await judge.score(ANSWER)).score == 1.0
    finally:
        await judge.close()


async def test_without_a_function_the_data_source_decides() -> None:
    judge = NaiveRewardManager()
    judge.check({"openai/gsm8k", "lighteval/MATH"})
    try:
        gsm8k = RewardInput(data_source="openai/gsm8k", solution_str="#### 72", ground_truth="72")
        assert (await judge.score(gsm8k)).score == 1.0
        maths = RewardInput(data_source="lighteval/MATH", solution_str=r"\boxed{0.5}", ground_truth=r"\frac12")
        result = await judge.score(maths)
        assert (result.score, result.components["acc"]) == (1.0, 1.0)
    finally:
        await judge.close()
    with pytest.raises(PluginError, match="no reward function for data_source 'mine'"):
        judge.check({"mine"})


@pytest.mark.parametrize(
    ("section", "error", "said"),
    [
        ({"path": "nowhere.py"}, SettingsError, "the reward function nowhere.py: there is no such file"),
        ({"path": "no_such.module"}, PluginError, "does not import"),
        ({"path": "gsm8"}, PluginError, "no rewards plugin named 'gsm8'; did you mean 'gsm8k'"),
        ({"path": "FILE", "name": "compute_scores"}, PluginError, "has no attribute 'compute_scores'; it has compute_"),
        ({"path": "FILE", "name": "number"}, PluginError, "is int; expected compute_score"),
        ({"path": "FILE", "name": "wrong_signature"}, PluginError, "lacks the parameter 'data_source'"),
        ({"path": "FILE", "reward_kwargs": {"scale": 2}}, SettingsError, "takes no argument 'scale'"),
        ({"path": "length", "reward_kwargs": {"maximum": "many"}}, SettingsError, "maximum='many': .* valid integer"),
        ({"path": "format", "reward_kwargs": {"tags": "think"}}, SettingsError, "tags='think': "),
        ({"path": "format", "reward_kwargs": {"pattern": "(a"}}, SettingsError, "'.a' is no regular expression"),
        ({"path": "json_schema", "reward_kwargs": {"schema": {"type": 7}}}, SettingsError, "is no JSON schema"),
    ],
)
def test_a_wrong_function_is_refused_at_the_start(file: str, section: Any, error: type[Exception], said: str) -> None:
    section = {key: file if value == "FILE" else value for key, value in section.items()}
    arguments = section.pop("reward_kwargs", {})
    with pytest.raises(error, match=said):
        NaiveRewardManager(RewardSettings(custom_reward_function=section, reward_kwargs=arguments))


@pytest.mark.parametrize("value", [1, True, 0.5, np.float32(0.5), np.int64(1), np.array(0.5), {"score": np.float64(1)}])
def test_numbers_of_any_make_are_scores(value: Any) -> None:
    assert isinstance(as_result(value, "f").score, float)


def test_scalars_of_numpy_and_torch_are_components_that_count() -> None:
    given = {"score": torch.tensor([0.5]), "acc": np.float32(1), "letters": torch.tensor(3), "each": np.array([1, 2])}
    result = as_result(given, "f")
    assert (result.score, numbers(result.components)) == (0.5, {"acc": 1.0, "letters": 3.0})


@pytest.mark.parametrize("value", [float("inf"), np.float32("nan"), {"score": None}, {"score": "1"}, [1.0], 1j])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="returned"):
        as_result(value, "f")
