"""CheckpointEngine: how new weights get from a training engine to a rollout server."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import torch

from agentverl.checkpoint_engine.seats import ALONE, Seat

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class CheckpointEngine(ABC):
    """Subclass for another way to move bytes. One update is, on both sides in this order:

    `prepare`, `build_topology`, then `send_weights` here and `receive_weights` there, then `finalize` with the version.
    All ranks of the training engine iterate their generators together, since sharded weights are gathered on the way.
    A receiver must never take a part of a set for the whole: `receive_weights` raises where the stream breaks off.
    """

    @abstractmethod
    async def prepare(self) -> None:
        """Get what an update needs, such as buffers; before each update."""

    @abstractmethod
    async def build_topology(self, seat: Seat = ALONE) -> None:
        """Connect sender and receivers, each with its own seat; does nothing where they already are."""

    @abstractmethod
    async def send_weights(self, weights: NamedTensors) -> None:
        """Send a complete set, tensor by tensor."""

    @abstractmethod
    def receive_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The set that is being sent. A tensor may be overwritten once the next one is asked for.

        Raises:
            WeightTransferError: the set breaks off, or nothing is being sent.
        """

    @abstractmethod
    async def refuse(self) -> None:
        """End the update in place of `finalize`, on the side of a receiver that cannot use the set."""

    @abstractmethod
    async def finalize(self, version: int) -> None:
        """End the update: the receivers now hold the complete set of this version.

        Raises:
            WeightTransferError: they do not.
        """
