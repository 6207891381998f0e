"""What the journal and the dumps get to know of the trajectories and steps of a run."""

from collections.abc import Sequence

from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.episode import EpisodeResult
from agentverl.tracking.journal import TrajectoryRecord


def record_of(result: EpisodeResult, step: int) -> TrajectoryRecord:
    """A trajectory as the journal keeps it."""
    row = result.episode.row
    failure = result.failure
    return TrajectoryRecord(
        uid=result.episode.uid,
        sample=result.episode.sample,
        step=step,
        split="val" if result.episode.validation else "train",
        outputs=result.outputs,
        trajectory_id=result.episode.trajectory_id,
        termination=str(result.termination),
        reward=result.score,
        reward_components=result.components,
        environment_score=result.environment_score,
        error=None if failure is None else f"{failure.boundary}: {failure.message}",
        data_source=str(row.get("data_source", "")),
        ground_truth=(row.get("reward_model") or {}).get("ground_truth"),
        extra_info=row.get("extra_info") or {},
        timings={
            "episode": result.seconds,
            "generate": sum(output.metrics.generate_sequences for output in result.outputs),
            "tools": sum(output.metrics.tool_calls for output in result.outputs),
            "score": sum(output.metrics.compute_score for output in result.outputs),
        },
    )


def trained_advantages(batch: DataProto) -> dict[str, list[list[float]]]:
    """By trajectory, one list a sequence with the advantage of each of its response tokens."""
    by_trajectory: dict[str, list[list[float]]] = {}
    for trajectory, row in zip(
        batch.non_tensor_batch["trajectory_id"], batch.batch.ragged("advantages").unbind(), strict=True
    ):
        by_trajectory.setdefault(trajectory, []).append([round(value, 6) for value in row.tolist()])
    return by_trajectory


def picked(results: Sequence[EpisodeResult], count: int) -> list[EpisodeResult]:
    """A few trajectories to look at: solved and unsolved ones in turn."""
    played = [result for result in results if result.outputs]
    solved = [result for result in played if (result.score or 0) > 0]
    unsolved = [result for result in played if (result.score or 0) <= 0]
    mixed = [result for pair in zip(solved, unsolved, strict=False) for result in pair]
    rest = solved[len(unsolved) :] + unsolved[len(solved) :]
    return [*mixed, *rest][:count]
