"""Call tools until the model answers in plain text; where the environment defines `step`, it hears the answers."""

from typing import Any

from agentverl.agent_loops.base import AgentLoopBase
from agentverl.trajectory import AgentLoopOutput


class ToolAgent(AgentLoopBase):
    """Reason and act in turns: tool calls go to tools or the environment, plain replies to the environment."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Play until the model answers, the environment is done, or a limit is reached."""
        chat = await self.chat(row, sampling_params)
        while not chat.done:
            reply = await chat.generate()
            if reply.tool_calls:
                await chat.call_tools(reply.tool_calls)
            elif not await chat.act(reply):
                break
        return chat.outputs()
