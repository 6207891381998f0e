"""Weights handed over within one process: no copy is made but the receiver's own."""

from collections.abc import Iterator

import torch

from agentverl.checkpoint_engine.base import CheckpointEngine, NamedTensors
from agentverl.checkpoint_engine.seats import ALONE, Seat
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError


class NaiveCheckpointEngine(CheckpointEngine):
    """Sender and receiver share this object; the receiver iterates the sender's own generator."""

    def __init__(self) -> None:
        self.version = -1
        """Of the last complete set; -1 before the first."""
        self._offered: NamedTensors | None = None
        self._complete = False

    async def prepare(self) -> None:
        self._offered, self._complete = None, False

    async def build_topology(self, seat: Seat = ALONE) -> None:
        """Both sides are here already."""

    async def send_weights(self, weights: NamedTensors) -> None:
        self._offered = weights

    def receive_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        offered, self._offered = self._offered, None
        if offered is None:
            raise WeightTransferError("no weights are being sent; call prepare and send_weights before each update")
        return self._received(offered)

    def _received(self, offered: NamedTensors) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            yield from offered
        except Exception as error:  # whatever the training engine raises, the set is not complete
            raise WeightTransferError(f"the weights broke off: {type(error).__name__}: {error}") from error
        self._complete = True

    async def refuse(self) -> None:
        self._complete = False

    async def finalize(self, version: int) -> None:
        if not self._complete:
            raise WeightTransferError(f"version {version} did not arrive completely; the servers keep the old weights")
        self.version, self._complete = version, False
