"""The runner: what becomes of an episode in each way it can go."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from agentverl.errors import BadInputError, BoundaryError, DatasetError, InfrastructureError, PluginError
from agentverl.rewards.base import RewardInput, RewardManager, RewardResult
from agentverl.trajectory import Termination
from tests.agent_loops.scripted import call_text
from tests.rollout.conftest import MakeHouse
from tests.rollout.worlds import Broken

WORLDS = "tests.rollout.worlds"


class Fixed(RewardManager):
    """Gives what it is told to, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[RewardInput] = []

    async def score(self, judged: RewardInput, deadline: Any = None) -> RewardResult:
        self.seen.append(judged)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return RewardResult(score=answer, components={"acc": answer})


def calculate_then_answer(turn: int, chance: Any) -> str:
    return call_text("calculator", expression="2+3") if turn == 0 else "It is 5."


async def test_an_episode_is_played_scored_and_closed(house: MakeHouse) -> None:
    reward = Fixed(1.0)
    stage = house(calculate_then_answer, reward=reward)
    result = await stage.play(data_source="sums", reward_model={"ground_truth": "5"})
    assert result.failure is None
    assert result.score == 1.0
    assert result.components == {"acc": 1.0}
    assert result.termination is Termination.ANSWERED
    assert [message["role"] for message in result.outputs[0].messages] == ["user", "assistant", "tool", "assistant"]
    assert result.outputs[0].messages[2]["content"] == "5"
    judged = reward.seen[0]
    assert (judged.data_source, judged.ground_truth, judged.final_message) == ("sums", "5", "It is 5.")
    assert "tool_response" not in judged.solution_str
    assert stage.replica.opened == stage.replica.closed == ["0-1/0"]
    assert set(stage.replica.requests) == {"0-1/0"}
    assert stage.router.held == {stage.router.replicas[0]: 0}


async def test_the_environment_gives_the_prompt_answers_and_scores(house: MakeHouse) -> None:
    stage = house(lambda turn, chance: "hello", reward=Fixed(7.0), environment=f"{WORLDS}:Greeting")
    result = await stage.play()
    assert result.termination is Termination.FINISHED
    assert (result.score, result.components) == (2.0, {"acc": 1.0})
    assert result.outputs[0].messages[0]["content"] == "Say hello."
    assert [turn.reward for turn in result.outputs[0].turns if turn.role == "assistant"] == [0.25, 0.25]


async def test_the_users_own_reward_function_comes_before_the_environment(house: MakeHouse) -> None:
    for settings in ({"has_custom_reward": True}, {"score_from": "function"}):
        stage = house(reward=Fixed(7.0), environment=f"{WORLDS}:Greeting", **settings)
        assert (await stage.play()).score == 7.0


async def test_a_reward_that_the_loop_set_is_kept(house: MakeHouse) -> None:
    result = await house(reward=Fixed(7.0)).play(agent_name=f"{WORLDS}:Raw", given_reward=0.5)
    assert result.score == 0.5
    assert result.outputs[0].turns[0].temperature == 1.0


async def test_a_loop_that_raises_is_an_error_of_the_agent(house: MakeHouse) -> None:
    stage = house(reward=Fixed(1.0))
    result = await stage.play(agent_name=f"{WORLDS}:Raising")
    assert result.failed
    assert result.termination is Termination.ERROR_AGENT
    assert result.failure is not None
    assert result.failure.message.startswith("KeyError: 'no such key' (worlds.py:")
    assert "tests/rollout/worlds.py" in result.outputs[0].extra_fields["traceback"]
    assert result.score is None
    assert result.attempts == 1
    assert len(result.outputs[0].response_ids) > 0


async def test_the_deadline_keeps_what_was_sampled(house: MakeHouse) -> None:
    for row in ({"agent_name": f"{WORLDS}:Hanging"}, {"agent_name": f"{WORLDS}:Raw", "hang": True}):
        stage = house(reward=Fixed(0.25), trajectory_timeout_seconds=0.1)
        result = await stage.play(**row)
        assert result.termination is Termination.DEADLINE
        assert not result.failed
        assert result.score == 0.25
        (_, answer), *_ = next(iter(stage.replica.answers.values()))
        assert result.outputs[0].response_ids == answer.token_ids
        assert set(result.outputs[0].response_mask) == {1}


async def test_a_deadline_during_a_reply_aborts_it_on_the_server(house: MakeHouse) -> None:
    stage = house(reward=Fixed(0.0), trajectory_timeout_seconds=0.05)
    stage.replica.delay_seconds = 30.0
    result = await stage.play()
    assert stage.replica.aborted == ["0-1/0"]
    assert result.termination is Termination.DEADLINE
    assert result.outputs[0].response_ids == []


async def test_debugging_knows_no_deadlines(house: MakeHouse) -> None:
    stage = house(reward=Fixed(1.0), trajectory_timeout_seconds=0.01, debug=True)
    stage.replica.delay_seconds = 0.05
    assert (await stage.play()).termination is Termination.ANSWERED


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        ("token", "were not sampled"),
        ("log_prob", "not what the server answered"),
        ("context", "sampled after other tokens"),
        ("twice", "carry loss twice"),
    ],
)
async def test_what_was_not_sampled_is_not_trained(house: MakeHouse, forge: str, reason: str) -> None:
    result = await house(reward=Fixed(1.0)).play(agent_name=f"{WORLDS}:Forging", forge=forge)
    assert result.termination is Termination.ERROR_AGENT
    assert result.failure is not None
    assert reason in result.failure.message


async def test_a_lost_server_is_tried_again_with_the_same_seeds(house: MakeHouse) -> None:
    stage = house(calculate_then_answer, reward=Fixed(1.0))
    stage.replica.fails = lambda request_id, turn: ConnectionError("gone") if turn == 1 else None
    result = await stage.play()
    assert result.failure is None
    assert result.attempts == 2
    assert stage.replica.params[0]["seed"] == stage.replica.params[2]["seed"]


async def test_a_server_that_stays_lost_fails_the_trajectory(house: MakeHouse) -> None:
    stage = house(reward=Fixed(1.0), max_retries=1)
    stage.replica.fails = lambda request_id, turn: ConnectionError("gone")
    result = await stage.play()
    assert result.termination is Termination.ERROR_MODEL
    assert result.attempts == 2
    assert result.failure is not None
    assert "ConnectionError: gone" in result.failure.message


async def test_an_environment_that_cannot_be_reset_is_tried_again_and_always_closed(house: MakeHouse) -> None:
    for failures, termination in ((2, Termination.ANSWERED), (3, Termination.ERROR_ENVIRONMENT)):
        Broken.resets, Broken.closed, Broken.failures = 0, 0, failures
        result = await house(environment=f"{WORLDS}:Broken").play()
        assert result.termination is termination
        assert Broken.resets == Broken.closed == 3


async def test_a_failing_reward_is_no_reward_of_zero(house: MakeHouse) -> None:
    result = await house(reward=Fixed(BoundaryError("returned nan", "reward"))).play()
    assert result.termination is Termination.ERROR_REWARD
    assert result.score is None


async def test_a_reward_out_of_reach_is_asked_once_more(house: MakeHouse) -> None:
    reward = Fixed(InfrastructureError("judge is away", "reward"), 0.5)
    result = await house(reward=reward).play()
    assert (result.score, len(reward.seen), result.attempts) == (0.5, 2, 1)


async def test_what_the_user_gave_wrong_is_raised(house: MakeHouse) -> None:
    with pytest.raises(PluginError, match="tool_agnet"):
        await house().play(agent_name="tool_agnet")
    with pytest.raises(DatasetError, match="raw_prompt"):
        await house().play(raw_prompt=[])
    with pytest.raises(BadInputError, match="environment_kwargs"):
        await house(environment="arithmetic").play(environment_kwargs={"left": 1})


async def test_cancelling_closes_everything(house: MakeHouse) -> None:
    Broken.resets, Broken.closed, Broken.failures = 0, 0, 0
    stage = house(environment=f"{WORLDS}:Broken")
    stage.replica.delay_seconds = 30.0
    task = asyncio.ensure_future(stage.play())
    await asyncio.wait_for(stage.replica.started.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Broken.closed == 1
    assert stage.replica.aborted == stage.replica.closed == ["0-1/0"]


async def test_an_episode_that_ended_leaves_nothing_to_the_garbage_collector(house: MakeHouse) -> None:
    home = house(calculate_then_answer)
    await home.play()
    gc.collect()
    gc.disable()
    try:
        result = weakref.ref((await home.play()).outputs[0])
        assert result() is None
    finally:
        gc.enable()
