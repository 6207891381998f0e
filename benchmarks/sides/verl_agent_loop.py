"""Side of `agent_loop`: verl's ToolAgentLoop, driven as its worker drives it; runs where verl 0.9.1 is installed."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import verl
from agent_script import (
    PROMPT_LENGTH,
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
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from turns import serve
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.workers.rollout.replica import TokenOutput

MODEL = sys.argv[1]


class Server:
    """Answers at once."""

    def __init__(self) -> None:
        self.replies: list[list[int]] = []
        self._turns = Turns()

    async def generate(self, request_id: str, **_: Any) -> TokenOutput:
        ids = self.replies[self._turns.next(request_id)]
        return TokenOutput(token_ids=list(ids), log_probs=[-0.5] * len(ids), stop_reason="completed")


with initialize_config_dir(config_dir=str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
    config = compose(
        "ppo_trainer",
        overrides=[
            f"actor_rollout_ref.model.path={MODEL}",
            "actor_rollout_ref.rollout.name=vllm",
            f"actor_rollout_ref.rollout.multi_turn.function_tool_path={TOOL_FILE}",
            "actor_rollout_ref.rollout.multi_turn.format=hermes",
            f"data.max_prompt_length={PROMPT_LENGTH}",
            f"data.max_response_length={RESPONSE_LENGTH}",
        ],
    )
OmegaConf.resolve(config)  # as verl's own entry point does
server = Server()
worker = AgentLoopWorker(config, server, None, None)
server.replies = script(worker.tokenizer)


def objects(values: list[Any]) -> np.ndarray:
    column = np.empty(SAMPLES, dtype=object)
    for row in range(SAMPLES):
        column[row] = values[row // SAMPLES_PER_PROMPT]
    return column


def turn() -> dict[str, Any]:
    batch = DataProto.from_dict(
        tensors={}, non_tensors={"raw_prompt": objects(QUESTIONS), "agent_name": objects(["tool_agent"] * PROMPTS)}
    )
    started = time.process_time()
    output = asyncio.run(worker.generate_sequences(batch))
    seconds = time.process_time() - started
    per_sample = int(output.batch["response_mask"][0].sum())
    assert per_sample == sum(map(len, server.replies)), f"{per_sample} tokens under mask 1"
    return {"seconds": seconds / SAMPLES / TURNS}


serve(turn)
