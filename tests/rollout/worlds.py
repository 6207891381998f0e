"""Agent loops and environments that behave badly, each in its own way."""

import asyncio
from typing import Any

from agentverl.agent_loops.base import AgentLoopBase
from agentverl.environments.base import Environment, EnvironmentContext, Observation, Step
from agentverl.errors import InfrastructureError
from agentverl.messages import Message
from agentverl.trajectory import AgentLoopOutput


class Raising(AgentLoopBase):
    """Speaks once, then has a bug."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        chat = await self.chat(row, sampling_params)
        await chat.generate()
        raise KeyError("no such key")


class Hanging(AgentLoopBase):
    """Speaks once, then hangs."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        chat = await self.chat(row, sampling_params)
        await chat.generate()
        await asyncio.sleep(60)
        return chat.outputs()


class Raw(AgentLoopBase):
    """Handles tokens itself, in verl's way; hangs when told to."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        prompt = self.tokenizer.apply_chat_template(row["raw_prompt"], add_generation_prompt=True)["input_ids"]
        params = {**sampling_params, "max_tokens": 50, "seed": 1, "stop_token_ids": [self.tokenizer.eos_token_id]}
        answer = await self.server_manager.generate("anything", prompt_ids=prompt, sampling_params=params)
        if row.get("hang"):
            await asyncio.sleep(60)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=answer.token_ids,
            response_mask=[1] * len(answer.token_ids),
            response_logprobs=answer.log_probs,
            reward_score=row.get("given_reward"),
        )


class Forging(AgentLoopBase):
    """Returns, as sampled, a token that was not; or with `row["forge"]` another lie."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        chat = await self.chat(row, sampling_params)
        await chat.generate()
        (output,) = chat.outputs()
        forge = row["forge"]
        if forge == "token":
            output.response_ids[0] += 1
        elif forge == "log_prob":
            assert output.response_logprobs is not None
            output.response_logprobs[0] -= 1.0
        elif forge == "context":
            output.prompt_ids[0] += 1
        elif forge == "twice":
            return [output, output.model_copy(update={"sequence_index": 1})]
        return [output]


class Greeting(Environment):
    """Replaces the prompt, answers plain text once, and scores by what it heard."""

    async def reset(self, context: EnvironmentContext, *args: Any, **task: Any) -> Observation:
        self.heard: list[str] = []
        return Observation(messages=[{"role": "user", "content": "Say hello."}])

    async def step(self, action: Message) -> Step:
        self.heard.append(str(action["content"]))
        done = len(self.heard) == 2
        messages = [{"role": "user", "content": "Again."}]
        return Step(observation=Observation(messages=messages), reward=0.25, done=done)

    async def score(self) -> dict[str, float]:
        return {"score": float(len(self.heard)), "acc": 1.0}


class Broken(Environment):
    """Cannot be reset the first `failures` times in a process."""

    resets = 0
    closed = 0
    failures = 0

    async def reset(self, context: EnvironmentContext, *args: Any, **task: Any) -> Observation:
        type(self).resets += 1
        if type(self).resets <= type(self).failures:
            raise InfrastructureError("no machine is free", "environment")
        return Observation()

    async def score(self) -> float:
        return 1.0

    async def close(self) -> None:
        type(self).closed += 1
