"""Trajectories to one training batch: ragged columns over the tokens, one row a sequence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agentverl.protocol.column_store import RowReference, Stored, put_references
from agentverl.protocol.columns import object_array
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.episode import EpisodeResult, Group
from agentverl.rollout.kept_sequences import KeptSequence, trainable
from agentverl.trajectory import AgentLoopOutput

_DTYPES = {
    "response_mask": np.int64,
    "turn_index": np.int64,
    "rollout_log_probs": np.float32,
    "temperature": np.float32,
    "token_level_scores": np.float32,
}
_NO_IDS = Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
_WITHOUT_ROWS: dict[str, Stored] = {
    "prompts": _NO_IDS,
    "responses": _NO_IDS,
    "token_class": _NO_IDS,
    "multi_modal_data": object_array([]),
}


def assemble(groups: Sequence[Group], *, meta_info: Mapping[str, Any] | None = None) -> DataProto:
    """The trainable sequences of all trajectories that did not fail, B rows.

    Columns are those of a training batch, ragged over each sequence's response tokens. `turn_index` numbers the
    policy's turns in their sequence, -1 on all other tokens. `token_level_scores` holds the trajectory's score on the
    last policy token of each of its roles, and turn rewards on the last token of their turns. Sequences without a
    policy token carry nothing to learn from, but stay, so that their trajectory's end is counted.

    `prompts`, `responses`, `multi_modal_data` and, where tokens are sorted, `token_class` are references.
    """
    results = [result for group in groups for result in group.results]
    rows = [row for result in results for row in _rows(result)]
    tensors = {
        name: Ragged.from_lengths(
            torch.from_numpy(np.concatenate([np.zeros(0, dtype), *(columns[name] for columns, _ in rows)])),
            [len(columns[name]) for columns, _ in rows],
        )
        for name, dtype in _DTYPES.items()
    }
    lengths = torch.tensor([fields.pop("prompt_length") for _, fields in rows], dtype=torch.int64)
    names = list(dict.fromkeys(name for _, fields in rows for name in fields))
    others = {name: object_array(fields.get(name) for _, fields in rows) for name in names}
    batch = DataProto.from_dict({**tensors, "prompt_length": lengths}, others, dict(meta_info or {}))
    kept = [result.kept for result in results if result.kept is not None and result.kept.sequences]
    for name in kept[0].columns if kept else ("prompts", "responses", "multi_modal_data"):
        references = [RowReference(one.columns[name], row) for one in kept for row in range(len(one.sequences))]
        put_references(batch, name, references, _WITHOUT_ROWS[name])
    return batch


def _rows(result: EpisodeResult) -> list[tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]]:
    """Of each sequence its token columns and its other fields."""
    if result.kept is None:
        return []
    sequences = list(zip(trainable(result.outputs), result.kept.sequences, strict=True))
    scored = {output.role: output.sequence_index for output, sequence in sequences if len(sequence.sampled)}
    rows = []
    for output, sequence in sequences:
        score = result.score if scored.get(output.role) == output.sequence_index else None
        rows.append((_token_columns(output, sequence, score), _fields(result, output, sequence)))
    return rows


def _token_columns(
    output: AgentLoopOutput, sequence: KeptSequence, score: float | None
) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of one sequence; `score` lands on its last policy token."""
    count = sequence.response_length
    columns: dict[str, np.ndarray[Any, Any]] = {
        "response_mask": np.zeros(count, np.int64),
        "turn_index": sequence.turn_index(output.turns),
        "rollout_log_probs": np.zeros(count, np.float32) if sequence.log_probs is None else sequence.log_probs,
        "temperature": np.ones(count, np.float32),
        "token_level_scores": np.zeros(count, np.float32),
    }
    for start, stop in sequence.sampled:
        columns["response_mask"][start:stop] = 1
    for turn in sequence.policy_turns(output.turns):
        if turn.stop > turn.start:
            # The log-probabilities of greedy turns are those at temperature 1.
            columns["temperature"][turn.start : turn.stop] = turn.temperature or 1.0
            columns["token_level_scores"][turn.stop - 1] += turn.reward or 0.0
    if score is not None and len(sequence.sampled):
        columns["token_level_scores"][sequence.sampled[-1, 1] - 1] += score
    return columns


def _fields(result: EpisodeResult, output: AgentLoopOutput, sequence: KeptSequence) -> dict[str, Any]:
    row = result.episode.row
    versions = [version for _, version in output.version_spans]
    return {
        "prompt_length": sequence.prompt_length,
        "uid": result.episode.uid,
        "trajectory_id": output.trajectory_id,
        "role": output.role,
        "sequence_index": output.sequence_index,
        "data_source": row.get("data_source", ""),
        "termination": result.termination.value,
        "state_keys": [turn.state_key for turn in sequence.policy_turns(output.turns)],
        "void_spans": [(turn.start, turn.stop) for turn in output.turns if turn.void],
        "has_rollout_log_probs": sequence.log_probs is not None,
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
