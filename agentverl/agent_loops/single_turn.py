"""One reply to the prompt, and nothing else."""

from typing import Any

from agentverl.agent_loops.base import AgentLoopBase
from agentverl.trajectory import AgentLoopOutput


class SingleTurnAgent(AgentLoopBase):
    """Answer once; tools are neither shown nor called."""

    calls_tools = False

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """The one reply."""
        chat = await self.chat(row, sampling_params, tools={})
        await chat.generate()
        return chat.outputs()
