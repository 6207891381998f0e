"""One update of a rollout server's weights, in the only order that never serves a mixture."""

from agentverl.checkpoint_engine.base import CheckpointEngine, NamedTensors
from agentverl.rollout.replica import RolloutReplica


async def update_replica(
    checkpoint_engine: CheckpointEngine, weights: NamedTensors, replica: RolloutReplica, version: int
) -> None:
    """Send a complete set to a replica, which puts it in place at a token boundary under its version number.

    Raises:
        WeightTransferError: the set broke off; the replica serves its old weights.
        BadInputError: the set does not fit the served model; the replica serves its old weights.
    """
    await checkpoint_engine.prepare()
    await checkpoint_engine.build_topology()
    await checkpoint_engine.send_weights(weights)
    await replica.update_weights(checkpoint_engine.receive_weights(), version)
    await checkpoint_engine.finalize(version)
