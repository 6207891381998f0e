"""What the journal gets to know of steps, and whoever watches of trajectories."""

from collections.abc import Sequence

from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.episode import EpisodeResult


def trained_advantages(batch: DataProto) -> dict[str, list[list[float]]]:
    """By trajectory, one list a sequence with the advantage of each of its response tokens."""
    by_trajectory: dict[str, list[list[float]]] = {}
    for trajectory, row in zip(
        batch.non_tensor_batch["trajectory_id"], batch.batch.ragged("advantages").unbind(), strict=True
    ):
        by_trajectory.setdefault(trajectory, []).append(row.double().numpy().round(6).tolist())
    return by_trajectory


def picked(results: Sequence[EpisodeResult], count: int) -> list[EpisodeResult]:
    """A few trajectories of the journal to look at: solved and unsolved ones in turn."""
    played = [result for result in results if result.outputs and result.written is not None]
    solved = [result for result in played if (result.score or 0) > 0]
    unsolved = [result for result in played if (result.score or 0) <= 0]
    mixed = [result for pair in zip(solved, unsolved, strict=False) for result in pair]
    rest = solved[len(unsolved) :] + unsolved[len(solved) :]
    return [*mixed, *rest][:count]
