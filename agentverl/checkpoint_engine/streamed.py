"""Weights that stream to other processes in two buckets by turns: while one is read, the next one is filled."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from agentverl import blocking
from agentverl.checkpoint_engine.announcements import Announcements
from agentverl.checkpoint_engine.base import CheckpointEngine, NamedTensors
from agentverl.checkpoint_engine.buckets import Filling, fill
from agentverl.checkpoint_engine.seats import ALONE, Seat
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError
from agentverl.errors import BadInputError

_BUCKETS = 2


class StreamedCheckpointEngine(CheckpointEngine):
    """One end of a transfer; subclasses move the bytes of a bucket.

    Of the ranks of a training engine only the one with the sender's seat copies anything; the others iterate along.
    """

    def __init__(self) -> None:
        self.version = -1
        """Of the last complete set; -1 before the first."""
        self.seat = ALONE
        self._board: Announcements | None = None
        self._updates = 0
        self._sent = self._received = 0
        self._reading = self._ended = self._complete = False

    async def prepare(self) -> None:
        self._updates += 1
        self._sent = self._received = 0
        self._reading = self._ended = self._complete = False

    async def build_topology(self, seat: Seat = ALONE) -> None:
        if self._board is None:
            if seat.size < 2:
                raise BadInputError(
                    f"{type(self).__name__} brings weights to other processes, and the rollout server is in that of "
                    "the training engine; set rollout.checkpoint_engine.backend=naive"
                )
            self.seat = seat
            self._board = await blocking.call(Announcements, seat)
            await blocking.call(self.connect)

    @property
    def board(self) -> Announcements:
        """Where the ends talk, after `build_topology`."""
        if self._board is None:
            raise WeightTransferError("the ends of a weight transfer are not connected; call build_topology first")
        return self._board

    async def send_weights(self, weights: NamedTensors) -> None:
        await blocking.call(self._send, weights)

    def _send(self, weights: NamedTensors) -> None:
        number = 0
        try:
            for filling in fill(weights, self.seat.bucket_bytes, self.takes_room):
                if number >= _BUCKETS:
                    self.board.hear_all(self._key(number - _BUCKETS, "taken"))
                self.board.tell(self._key(number, "bucket"), self.put(number % _BUCKETS, filling))
                self.put_announced(number % _BUCKETS, filling)
                number += 1
        except Exception as error:  # whatever the training engine raises, the set is not complete
            broken = f"{type(error).__name__}: {error}"
            self.board.tell(self._key(number, "bucket"), {"broken": broken})
            raise WeightTransferError(f"the weights broke off: {broken}") from error
        self.board.tell(self._key(number, "bucket"), {"buckets": number})
        self._sent, self._complete = number, True

    def receive_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        while (bucket := self._next_bucket()) is not None:
            yield from bucket
        self._complete = True

    def _next_bucket(self) -> Iterator[tuple[str, torch.Tensor]] | None:
        """The tensors of the next bucket; None at the end of the set."""
        told = self.board.hear(self._key(self._received, "bucket"))
        self._ended = "entries" not in told
        if "broken" in told:
            raise WeightTransferError(f"the weights broke off: {told['broken']}")
        if self._ended:
            return None
        tensors = self.get(self._received % _BUCKETS, told)
        self._reading = True
        return self._until_taken(tensors)

    def _until_taken(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors
        self._taken()

    def _taken(self) -> None:
        self.board.tell_mine(self._key(self._received, "taken"))
        self._received, self._reading = self._received + 1, False

    def _let_pass(self) -> None:
        """Take the rest of a set that is of no use here, so that sender and other receivers need not wait."""
        with suppress(WeightTransferError):
            while not self._ended:
                if self._reading:
                    self._taken()
                self._next_bucket()

    async def finalize(self, version: int) -> None:
        if not self._complete:
            raise WeightTransferError(f"version {version} did not arrive completely; the servers keep the old weights")
        if self.seat.sends:
            await self._hear_of_arrival(version)
        else:
            self.board.tell_mine(self._key(0, "done"), True)
        self.version, self._complete = version, False

    async def refuse(self) -> None:
        try:
            await blocking.call(self._let_pass)
        finally:
            self.board.tell_mine(self._key(0, "done"), False)

    async def _hear_of_arrival(self, version: int) -> None:
        arrived = await blocking.call(self.board.hear_all, self._key(0, "done"))
        if not all(arrived):
            missing = ", ".join(str(rank) for rank, complete in enumerate(arrived, 1) if not complete)
            raise WeightTransferError(f"version {version} did not arrive completely at receivers {missing}")
        self.board.wipe(self._key(number, "bucket") for number in range(self._sent + 1))
        self.board.wipe_all([self._key(0, "done"), *(self._key(number, "taken") for number in range(self._sent))])

    def _key(self, number: int, what: str) -> str:
        return f"{self._updates}/{what}/{number}"

    def takes_room(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor travels in a bucket; one that does not is told of with those that do."""
        return True

    @abstractmethod
    def connect(self) -> None:
        """Get ready to move bytes, all ends together."""

    @abstractmethod
    def put(self, slot: int, filling: Filling) -> dict[str, Any]:
        """Copy into a bucket that all receivers are through with; returns what they are told, with its `entries`."""

    @abstractmethod
    def put_announced(self, slot: int, filling: Filling) -> None:
        """Move what was put, now that the receivers know of it."""

    @abstractmethod
    def get(self, slot: int, told: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of a bucket, once it is here."""
