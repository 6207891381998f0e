"""A house for episodes: the byte-level template, a calculator, a scripted server, a router and a runner."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.tools.loading import tools_of_entries
from agentverl.tools.toolset import Toolset
from tests.agent_loops.scripted import TinyParser, byte_tokenizer
from tests.rollout.fake_replica import FakeReplica, Write

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]


@dataclass
class House:
    """A runner and its server."""

    runner: EpisodeRunner
    replica: FakeReplica
    router: LeastLoadedRouter

    async def play(self, **row: Any) -> EpisodeResult:
        episode = Episode(
            uid="0-1", sample=0, row={"raw_prompt": QUESTION, **row}, sampling_params={"temperature": 1.0}
        )
        lease = await self.router.lease(episode.trajectory_id)
        try:
            return await self.runner.run(episode, lease, Gate())
        finally:
            await lease.close()


MakeHouse = Callable[..., House]


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate(byte_tokenizer())


@pytest.fixture
def house(template: ChatTemplate) -> MakeHouse:
    def make(
        write: Write = lambda turn, chance: "It is 5.",
        *,
        tools: tuple[Any, ...] = ("calculator",),
        reward: Any = None,
        limits: dict[str, Any] | None = None,
        **settings: Any,
    ) -> House:
        replica = FakeReplica(template, write)
        parts = EpisodeParts(
            template=template, parser=TinyParser(), toolset=Toolset(tools_of_entries(tools)), reward=reward
        )
        chosen = {"default_agent_loop": "tool_agent", "retry_backoff_seconds": 0.001, **settings}
        chat_limits = ChatLimits(**{"max_response_length": 2048, **(limits or {})})
        runner = EpisodeRunner(RunnerSettings(limits=chat_limits, **chosen), parts)
        return House(runner, replica, LeastLoadedRouter([cast(RolloutReplica, replica)]))

    return make
