"""Side of `agent_loop`: agentverl's tool_agent, from submitted rows to the batch that is trained on."""

import sys
import time
from typing import Any

from agent_script import (
    PROMPTS,
    QUESTIONS,
    RESPONSE_LENGTH,
    SAMPLES,
    SAMPLES_PER_PROMPT,
    TOOL_FILE,
    TURNS,
    Turns,
    script,
)
from turns import serve

from agentverl import garbage
from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.hermes import HermesToolParser
from agentverl.data.tokenizers import load_tokenizer
from agentverl.rollout.batching import assemble
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.tools.loading import load_tools
from agentverl.tools.toolset import Toolset
from agentverl.trajectory import TokenOutput


class Server:
    """Answers at once."""

    weight_version = 0

    def __init__(self) -> None:
        self._turns = Turns()

    async def open(self, request_id: str) -> None:
        pass

    async def close(self, request_id: str) -> None:
        pass

    async def generate(self, request_id: str, **_: Any) -> TokenOutput:
        ids = replies[self._turns.next(request_id)]
        return TokenOutput(list(ids), [-0.5] * len(ids), "completed", [(len(ids), 0)])


tokenizer = load_tokenizer(sys.argv[1])
replies = script(tokenizer)
parts = EpisodeParts(
    template=ChatTemplate(tokenizer),
    parser=HermesToolParser(),
    toolset=Toolset(load_tools(function_tool_path=TOOL_FILE)),
)
limits = ChatLimits(max_response_length=RESPONSE_LENGTH)
runner = EpisodeRunner(RunnerSettings(limits=limits, default_agent_loop="tool_agent"), parts)
settings = RolloutsSettings(sampling_params={"temperature": 1.0}, max_concurrent_trajectories=SAMPLES)
rows = [{"uid": f"0-{number}", "raw_prompt": question} for number, question in enumerate(QUESTIONS)]
rollouts = Rollouts(runner, LeastLoadedRouter([Server()]), settings)
garbage.leave_alone_what_is_there()  # as a run does when all is open


def turn() -> dict[str, Any]:
    started = time.process_time()
    rollouts.submit(rows, SAMPLES_PER_PROMPT)
    batch = assemble(rollouts.next_groups(PROMPTS))
    seconds = time.process_time() - started
    per_sample = int(batch.batch["response_mask"][0].sum())
    assert len(batch) == SAMPLES
    assert per_sample == sum(map(len, replies)), f"{per_sample} tokens under mask 1"
    return {"seconds": seconds / SAMPLES / TURNS}


serve(turn)
