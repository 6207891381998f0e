"""What goes wrong between a training engine and a rollout server."""

from agentverl.errors import AgentverlError


class WeightTransferError(AgentverlError):
    """A set of weights did not arrive completely; the receivers keep their old ones."""
