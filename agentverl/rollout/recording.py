"""What the journal gets to know of a trajectory."""

from agentverl.rollout.episode import EpisodeResult
from agentverl.tracking.journal import TrajectoryRecord


def record_of(result: EpisodeResult) -> TrajectoryRecord:
    """A trajectory as the journal keeps it."""
    row = result.episode.row
    failure = result.failure
    return TrajectoryRecord(
        uid=result.episode.uid,
        sample=result.episode.sample,
        step=result.episode.step,
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
