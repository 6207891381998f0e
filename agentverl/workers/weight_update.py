"""One update of rollout servers' weights, in the only order that never serves a mixture."""

from collections import deque

from agentverl import blocking
from agentverl.checkpoint_engine.base import CheckpointEngine, NamedTensors
from agentverl.checkpoint_engine.seats import Seat
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


async def send_weights(
    checkpoint_engine: CheckpointEngine, weights: NamedTensors, seat: Seat | None, version: int
) -> None:
    """The training engine's end, on all its ranks together: the one with a seat sends, the others iterate along.

    Raises:
        WeightTransferError: the set broke off, or did not arrive completely at all replicas.
    """
    if seat is None:
        await blocking.call(deque, weights, 0)
        return
    await checkpoint_engine.prepare()
    await checkpoint_engine.build_topology(seat)
    await checkpoint_engine.send_weights(weights)
    await checkpoint_engine.finalize(version)


async def receive_weights(
    checkpoint_engine: CheckpointEngine, replica: RolloutReplica, seat: Seat, version: int
) -> None:
    """A replica's end: it puts the set in place once it is complete, and says to the sender whether it did.

    Raises:
        WeightTransferError: the set broke off; the replica serves its old weights.
        BadInputError: the set does not fit the served model; the replica serves its old weights.
    """
    await checkpoint_engine.prepare()
    await checkpoint_engine.build_topology(seat)
    try:
        await replica.update_weights(checkpoint_engine.receive_weights(), version)
    except Exception:
        await checkpoint_engine.refuse()
        raise
    await checkpoint_engine.finalize(version)
