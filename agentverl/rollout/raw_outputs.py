"""Outputs of loops that made them themselves, completed with what the journal and the batch need."""

from collections.abc import Sequence
from typing import Any

from agentverl.rollout.client import Sampled
from agentverl.trajectory import AgentLoopOutput, Turn


def as_outputs(returned: Any) -> list[AgentLoopOutput]:
    """What a loop's `run` returned as a list.

    Raises:
        TypeError: it is neither an AgentLoopOutput nor a list of them.
    """
    if returned is None:
        return []
    outputs = [returned] if isinstance(returned, AgentLoopOutput) else returned
    if not isinstance(outputs, list | tuple) or not all(isinstance(output, AgentLoopOutput) for output in outputs):
        raise TypeError(f"run returned {type(returned).__name__}; expected an AgentLoopOutput or a list of them")
    return list(outputs)


def complete(outputs: Sequence[AgentLoopOutput], trajectory_id: str, record: Sequence[Sampled]) -> None:
    """Fill in, in place, the trajectory's id, the indices of its sequences, and turns that follow the mask."""
    if len({output.sequence_index for output in outputs}) < len(outputs):
        for index, output in enumerate(outputs):
            output.sequence_index = index
    temperature = record[0].temperature if record else 1.0
    for output in outputs:
        output.trajectory_id = trajectory_id
        if not output.turns:
            output.turns = _turns(output.response_mask, temperature)


def _turns(mask: Sequence[int], temperature: float) -> list[Turn]:
    turns: list[Turn] = []
    for position, bit in enumerate(mask):
        role = "assistant" if bit else "tool"
        if turns and turns[-1].role == role:
            turns[-1].stop = position + 1
        else:
            turns.append(Turn(role=role, start=position, stop=position + 1))
    for turn in turns:
        if turn.role == "assistant":
            turn.temperature = temperature
    return turns
