"""Trajectories to one training batch: ragged columns over the tokens, one row a sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.episode import EpisodeResult, Group
from agentverl.trajectory import AgentLoopOutput, Turn

_DTYPES = {
    "prompts": np.int64,
    "responses": np.int64,
    "response_mask": np.int64,
    "turn_index": np.int64,
    "rollout_log_probs": np.float32,
    "temperature": np.float32,
    "token_level_scores": np.float32,
}


@dataclass(slots=True)
class _Row:
    """One sequence: its token columns by name, and its other fields."""

    columns: dict[str, np.ndarray[Any, Any]]
    fields: dict[str, Any]


def assemble(groups: Sequence[Group], *, meta_info: Mapping[str, Any] | None = None) -> DataProto:
    """The trainable sequences of all trajectories that did not fail, B rows.

    Columns are those of a training batch, ragged over each sequence's response tokens (`prompts` over its prompt).
    `turn_index` numbers the policy's turns in their sequence, -1 on all other tokens. `token_level_scores` holds the
    trajectory's score on the last policy token of each of its roles, and turn rewards on the last token of their turns.
    Sequences without a policy token carry nothing to learn from, but stay, so that their trajectory's end is counted.
    """
    rows = [row for group in groups for result in group.results for row in _rows(result)]
    tensors = {
        name: Ragged.from_lengths(
            torch.from_numpy(np.concatenate([np.zeros(0, dtype), *(row.columns[name] for row in rows)])),
            [len(row.columns[name]) for row in rows],
        )
        for name, dtype in _DTYPES.items()
    }
    names = list(dict.fromkeys(name for row in rows for name in row.fields))
    others = {name: _objects([row.fields.get(name) for row in rows]) for name in names}
    return DataProto.from_dict(tensors, others, dict(meta_info or {}))


def _rows(result: EpisodeResult) -> list[_Row]:
    ordered = sorted(result.outputs, key=lambda output: output.sequence_index)
    trainable = [output for output in ordered if output.trainable]
    scored = {output.role: output.sequence_index for output in trainable if any(output.response_mask)}
    rows = []
    for output in trainable:
        is_scored = scored.get(output.role) == output.sequence_index
        columns = token_columns(output, result.score if is_scored else None)
        rows.append(_Row(columns, _fields(result, output)))
    return rows


def token_columns(output: AgentLoopOutput, score: float | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of one sequence as numpy arrays; `score` lands on its last policy token."""
    count = len(output.response_ids)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "prompts": np.array(output.prompt_ids, np.int64),
        "responses": np.array(output.response_ids, np.int64),
        "response_mask": np.array(output.response_mask, np.int64),
        "turn_index": np.full(count, -1, np.int64),
        "rollout_log_probs": np.zeros(count, np.float32),
        "temperature": np.ones(count, np.float32),
        "token_level_scores": np.zeros(count, np.float32),
    }
    if output.response_logprobs is not None:
        columns["rollout_log_probs"] = np.array(output.response_logprobs, np.float32)
    for number, turn in enumerate(_policy_turns(output)):
        if turn.stop > turn.start:
            columns["turn_index"][turn.start : turn.stop] = number
            # The log-probabilities of greedy turns are those at temperature 1.
            columns["temperature"][turn.start : turn.stop] = turn.temperature or 1.0
            columns["token_level_scores"][turn.stop - 1] += turn.reward or 0.0
    policy_tokens = np.flatnonzero(columns["response_mask"])
    if score is not None and len(policy_tokens):
        columns["token_level_scores"][policy_tokens[-1]] += score
    return columns


def _policy_turns(output: AgentLoopOutput) -> list[Turn]:
    """The turns of the policy; a loop that names none took one for each run of sampled tokens."""
    named = [turn for turn in output.turns if turn.role == "assistant"]
    if named:
        return named
    edges = np.flatnonzero(np.diff(np.array([0, *output.response_mask, 0]))).reshape(-1, 2)
    return [Turn(role="assistant", start=int(start), stop=int(stop)) for start, stop in edges]


def _fields(result: EpisodeResult, output: AgentLoopOutput) -> dict[str, Any]:
    row = result.episode.row
    versions = [version for _, version in output.version_spans]
    return {
        "uid": result.episode.uid,
        "trajectory_id": output.trajectory_id,
        "role": output.role,
        "sequence_index": output.sequence_index,
        "data_source": row.get("data_source", ""),
        "termination": result.termination.value,
        "state_keys": [turn.state_key for turn in _policy_turns(output)],
        "void_spans": [(turn.start, turn.stop) for turn in output.turns if turn.void],
        "has_rollout_log_probs": output.response_logprobs is not None,
        "extra_info": row.get("extra_info") or {},
        "reward_model": row.get("reward_model") or {},
        "score": result.score,
        "num_turns": output.num_turns,
        "tool_call_count": int(output.extra_fields.get("num_tool_calls", 0)),
        "min_weight_version": min(versions, default=None),
        "max_weight_version": max(versions, default=None),
        "generate_seconds": output.metrics.generate_sequences,
        "tool_seconds": output.metrics.tool_calls,
        "score_seconds": output.metrics.compute_score,
        "reward_components": result.components,
    }


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), dtype=object)
    for position, value in enumerate(values):
        array[position] = value
    return array
