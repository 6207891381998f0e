"""The agent of `useful_tokens`: three turns of log-normal lengths, with a call of a tool after each but the last."""

from typing import Any

import numpy as np

from agentverl.agent_loops.base import AgentLoopBase
from agentverl.messages import ToolCall
from agentverl.settings.seeds import derive_seed
from agentverl.trajectory import AgentLoopOutput

TURNS, MEDIAN, SIGMA, LONGEST = 3, 32, 1.0, 256


class LogNormalAgent(AgentLoopBase):
    """Speaks as long as it is told to, and calls the tool whatever the policy wrote."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        chat = await self.chat(row, sampling_params)
        random = np.random.default_rng(derive_seed(self.context.uid, self.context.sample))
        lengths = np.clip(random.lognormal(np.log(MEDIAN), SIGMA, TURNS).round(), 1, LONGEST).astype(int)
        for turn, length in enumerate(lengths.tolist()):
            await chat.generate(max_tokens=length)
            if turn < TURNS - 1:
                await chat.call_tools([ToolCall("add", {"a": length, "b": turn})])
        return chat.outputs()
