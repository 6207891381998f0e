"""With a server that works in rounds, what is sampled does not depend on timing."""

import asyncio
import random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from agentverl.agent_loops.base import AgentLoopBase
from agentverl.agent_loops.limits import ChatLimits
from agentverl.agent_loops.loading import AgentLoops
from agentverl.data.chat_template import ChatTemplate
from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.trajectory import AgentLoopOutput
from tests.agent_loops.scripted import TinyParser

CHATTER = "tests.rollout.test_deterministic:Chatter"


class Chatter(AgentLoopBase):
    """Takes random time between turns, asks a sub-agent, and fails once in a while."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        chat = await self.chat(row, sampling_params)
        for turn in range(3):
            await asyncio.sleep(random.random() * 0.01)
            await chat.generate()
            if turn == 1:
                helper = chat.spawn([{"role": "user", "content": "Help."}], role="helper")
                await helper.generate()
            if self.context.sample == 1 and row["uid"] == "0-0":
                raise ValueError("this sample always fails")
            await chat.observe({"role": "user", "content": "Go on."})
        return chat.outputs()


def sample(template: ChatTemplate, wave: int) -> list[tuple[str, list[int], list[float] | None]]:
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=len(template.tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=template.tokenizer.eos_token_id,
    )
    weights = list(AutoModelForCausalLM.from_config(config).named_parameters())
    server = HFReplica(config, template.tokenizer, HFSettings(deterministic=True, kv_memory_bytes=1 << 26))
    limits = ChatLimits(max_response_length=200, max_tokens_per_turn=8)
    parts = EpisodeParts(template=template, parser=TinyParser(), agent_loops=AgentLoops())
    runner = EpisodeRunner(RunnerSettings(limits=limits, default_agent_loop=CHATTER, deterministic=True), parts)
    settings = RolloutsSettings(
        sampling_params={"temperature": 1.0},
        deterministic=True,
        max_concurrent_trajectories=wave,
        max_excluded_fraction=0.5,
    )
    with Rollouts(runner, LeastLoadedRouter([server]), settings) as rollouts:
        rollouts.thread.run(server.init_standalone())
        rollouts.thread.run(server.update_weights(weights, 1))
        rows = [{"uid": f"0-{index}", "raw_prompt": [{"role": "user", "content": "Hi " * index}]} for index in (0, 1)]
        rollouts.submit(rows, 3)
        groups = rollouts.next_groups(2)
        rollouts.thread.run(server.shutdown())
    return [
        (output.trajectory_id, output.response_ids, output.response_logprobs)
        for group in groups
        for result in group.results
        for output in result.outputs
    ]


def test_rounds_sample_the_same_whatever_the_timing(template: ChatTemplate) -> None:
    first = sample(template, 256)
    assert first == sample(template, 256)
    assert [name for name, _, _ in first if name.startswith("0-0")] == [
        "0-0/0",
        "0-0/0",
        "0-0/2",
        "0-0/2",
        "0-0/3",
        "0-0/3",
    ]
