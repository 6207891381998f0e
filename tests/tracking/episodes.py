"""A small trajectory for the tests of this room."""

from typing import Any

import orjson

from agentverl.tracking.journal import TrajectoryRecord
from agentverl.tracking.json_lines import dumped
from agentverl.trajectory import AgentLoopOutput, Termination, Turn

WORDS = ["What is", " 2+2", "?", " calc", "(2+2)", " tool:", " 4", " It is", " 4", "<end>"]


def decode(ids: list[int]) -> str:
    return "".join(WORDS[token] for token in ids)


def output(**changes: Any) -> AgentLoopOutput:
    fields: dict[str, Any] = {
        "prompt_ids": [0, 1, 2],
        "response_ids": [3, 4, 5, 6, 7, 8, 9],
        "response_mask": [1, 1, 0, 0, 1, 1, 1],
        "response_logprobs": [-0.01, -0.5, 0.0, 0.0, -2.0, -4.0, -0.02],
        "num_turns": 4,
        "turns": [
            Turn(role="assistant", start=0, stop=2, tool_names=["calculator"], seconds=0.5),
            Turn(role="tool", start=2, stop=4),
            Turn(role="assistant", start=4, stop=7, stop_reason="length", reward=0.5),
        ],
        "version_spans": [(2, 3), (7, 4)],
        "termination": Termination.ANSWERED,
        "messages": [
            {"role": "user", "content": "What is 2+2?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "calculator", "arguments": {"expression": "2+2"}}}],
            },
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "It is 4"},
        ],
    }
    return AgentLoopOutput(**{**fields, **changes})


def record(**changes: Any) -> TrajectoryRecord:
    fields: dict[str, Any] = {
        "uid": "0-1",
        "sample": 0,
        "step": 1,
        "split": "train",
        "outputs": [output()],
        "trajectory_id": "0-1/0",
        "termination": "answered",
        "reward": 1.0,
        "reward_components": {"acc": 1.0},
        "ground_truth": "4",
        "timings": {"generate": 0.25},
    }
    return TrajectoryRecord(**{**fields, **changes})


def as_read(written: TrajectoryRecord) -> dict[str, Any]:
    """The record as the journal gives it back."""
    read: dict[str, Any] = orjson.loads(dumped(written.as_dict()))
    return read
