"""What a training batch holds, under verl's metric names: scores, advantages, lengths, turns, endings."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from agentverl.agent_loops.calls import ERROR_KINDS
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.rollout.episode import EpisodeResult
from agentverl.trajectory import Termination

_CUT = {Termination.RESPONSE_LENGTH, Termination.CONTEXT_LENGTH}


def data_metrics(batch: DataProto, *, max_prompt_length: int) -> dict[str, float]:
    """Metrics of one step's batch of `B` sequences.

    Scores and rewards are sums over a trajectory; advantages and returns are taken over the policy's tokens. A
    response counts as clipped when it ended by length, not when it happens to be the longest.
    """
    mask = batch.batch.ragged("response_mask").values.bool()
    metrics: dict[str, float] = {}
    for name, column in (("score", "token_level_scores"), ("rewards", "token_level_rewards")):
        metrics |= _spread(f"critic/{name}", _trajectory_sums(batch, column))
    for name in ("advantages", "returns"):
        metrics |= _spread(f"critic/{name}", batch.batch.ragged(name).values[mask].numpy())
    if "values" in batch.batch:
        metrics |= _value_metrics(batch, mask)
    metrics |= _length_metrics(batch, max_prompt_length)
    metrics |= _spread("num_turns", np.asarray(batch.non_tensor_batch["num_turns"], dtype=np.float64))
    metrics |= _spread("tool_call_counts", np.asarray(batch.non_tensor_batch["tool_call_count"], dtype=np.float64))
    return metrics


def termination_metrics(terminations: list[Any], prefix: str = "training") -> dict[str, float]:
    """The share of trajectories that ended in each way; every way is present, so that curves have no gaps."""
    counts = Counter(Termination(termination) for termination in terminations)
    total = max(len(terminations), 1)
    return {f"{prefix}/termination/{way.value.replace(':', '_')}": counts[way] / total for way in Termination}


def tool_error_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """The share of all tool calls that were answered by each kind of error; every kind is present."""
    outputs = [output for result in results for output in result.outputs]
    calls = sum(output.extra_fields.get("num_tool_calls", 0) for output in outputs)
    counts: Counter[str] = Counter()
    for output in outputs:
        counts.update(output.extra_fields.get("tool_errors", {}))
    return {f"training/tool_errors/{kind}": counts[kind] / max(calls, 1) for kind in ERROR_KINDS}


def rollout_difference_metrics(batch: DataProto) -> dict[str, float]:
    """How far the engine's log-probs are from those that the rollout server sampled with."""
    if "old_log_probs" not in batch.batch or "rollout_log_probs" not in batch.batch:
        return {}
    mask = batch.batch.ragged("response_mask").values.bool()
    engine = batch.batch.ragged("old_log_probs").values[mask].exp()
    server = batch.batch.ragged("rollout_log_probs").values[mask].exp()
    if not len(engine):
        return {"training/rollout_probs_diff_valid": 0.0}
    difference = (engine - server).abs()
    metrics = {
        "training/rollout_probs_diff_valid": 1.0,
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_std": float(difference.std(correction=0)),
    }
    if len(engine) > 1 and float(engine.std()) > 0 and float(server.std()) > 0:
        correlation = torch.corrcoef(torch.stack((engine, server)))[0, 1]
        metrics["training/rollout_actor_probs_pearson_corr"] = float(correlation)
    return metrics


def _value_metrics(batch: DataProto, mask: torch.Tensor) -> dict[str, float]:
    """The critic's values over the policy's tokens, and the share of the returns' variance that they explain."""
    values, returns = (batch.batch.ragged(name).values[mask] for name in ("values", "returns"))
    metrics = _spread("critic/values", values.numpy())
    if len(values) > 1:
        unexplained = float((returns - values).var() / (returns.var() + 1e-5))
        metrics["critic/vf_explained_var"] = 1.0 - unexplained
    return metrics


def _row_sums(column: Ragged) -> np.ndarray[Any, Any]:
    sums = torch.zeros(len(column), dtype=torch.float64).index_add_(0, column.row_index, column.values.double())
    return sums.numpy()


def _trajectory_sums(batch: DataProto, name: str) -> np.ndarray[Any, Any]:
    _, trajectory = np.unique(batch.non_tensor_batch["trajectory_id"].astype(str), return_inverse=True)
    return np.bincount(trajectory, weights=_row_sums(batch.batch.ragged(name)))


def _length_metrics(batch: DataProto, max_prompt_length: int) -> dict[str, float]:
    responses = batch.batch.ragged("response_mask").lengths.numpy()
    prompts = batch.batch.tensor("prompt_length").numpy()
    endings = [Termination(value) for value in batch.non_tensor_batch["termination"]]
    clipped = np.array([ending in _CUT for ending in endings], dtype=np.float64)
    aborted = responses == 0
    metrics = _spread("response_length", responses) | _spread("prompt_length", prompts)
    metrics["response_length/clip_ratio"] = float(clipped.mean()) if len(clipped) else 0.0
    metrics["prompt_length/clip_ratio"] = float((prompts >= max_prompt_length).mean()) if len(prompts) else 0.0
    metrics["response/aborted_ratio"] = float(aborted.mean()) if len(aborted) else 0.0
    if not aborted.all():
        metrics |= _spread("response_length_non_aborted", responses[~aborted])
        metrics["response_length_non_aborted/clip_ratio"] = float(clipped[~aborted].mean())
    sequence_lengths = prompts + responses
    metrics |= _spread("global_seqlen", sequence_lengths)
    return metrics


def _spread(name: str, values: Any) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }
