"""Loops that ask for tokens themselves: what their requests and their outputs leave open."""

from collections.abc import Sequence
from typing import Any

from agentverl.agent_loops.limits import ChatLimits
from agentverl.agent_loops.protocols import Template
from agentverl.rollout.record import Sampled
from agentverl.settings.seeds import derive_seed
from agentverl.trajectory import AgentLoopOutput, Turn


def raw_params(
    limits: ChatLimits,
    template: Template,
    identity: tuple[int, str, int],
    prompt_ids: Sequence[int],
    record: Sequence[Sampled],
) -> dict[str, Any]:
    """Sampling parameters of a request that does not state them; `identity` is run seed, uid and sample."""
    used = len(prompt_ids) - len(record[0].prompt_ids) if record else 0
    left = [limits.max_response_length - used]
    if limits.max_model_len is not None:
        left.append(limits.max_model_len - len(prompt_ids))
    return {
        "max_tokens": max(1, min(left)),
        "stop_token_ids": list(template.stop_token_ids),
        "seed": derive_seed(*identity, "raw", len(record)),
    }


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
