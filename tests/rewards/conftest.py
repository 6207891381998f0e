"""Trajectories and managers as the tests of rewards need them."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentverl import plugins
from agentverl.rewards.base import RewardContext, RewardInput, RewardManager
from agentverl.settings.reward import RewardSettings
from agentverl.trajectory import AgentLoopOutput, Turn

MakeManager = Callable[..., RewardManager]


def answer_of(text: str = "4", truth: Any = "4", **fields: Any) -> RewardInput:
    """What a reward sees of a trajectory that answered so."""
    messages = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": text}]
    given = {"data_source": "mine", "ground_truth": truth, "messages": messages, **fields}
    return RewardInput(solution_str=text, final_message=text, full_text=text, **given)


def sequence_of(*turns: dict[str, float], length: int = 4) -> AgentLoopOutput:
    """A sequence whose turns earned these rewards."""
    listed = [
        Turn(role="assistant", start=0, stop=1, reward=sum(rewards.values()), rewards=rewards) for rewards in turns
    ]
    return AgentLoopOutput(prompt_ids=[1], response_ids=[1] * length, response_mask=[1] * length, turns=listed)


@pytest.fixture
async def make_manager() -> AsyncIterator[MakeManager]:
    """Managers by name, closed after the test."""
    made: list[RewardManager] = []

    def make(name: str = "naive", context: RewardContext | None = None, **settings: Any) -> RewardManager:
        given = {"reward_manager": {"name": name}, **settings}
        made.append(plugins.find("reward_managers", name)(RewardSettings.model_validate(given), context))
        return made[-1]

    yield make
    for manager in made:
        await manager.close()
