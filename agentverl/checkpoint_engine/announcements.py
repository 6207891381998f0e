"""What the ends of a transfer tell each other beside the weights: which bucket is ready, taken, complete."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import orjson
from torch._C._distributed_c10d import TCPStore

from agentverl.checkpoint_engine.seats import Seat
from agentverl.checkpoint_engine.transfer_errors import WeightTransferError


class Announcements:
    """A board that the sender keeps and all ends read and write.

    Raises:
        WeightTransferError: the other ends are not there in time.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        host, port = seat.host_and_port
        try:
            self.store = TCPStore(
                host,
                port,
                is_master=seat.sends,
                wait_for_workers=False,
                timeout=timedelta(seconds=seat.timeout_seconds),
            )
        except (RuntimeError, ValueError) as error:
            raise WeightTransferError(f"no weight transfer: nobody met at {seat.address}: {error}") from error

    def tell(self, key: str, value: Any = None) -> None:
        """Put something on the board."""
        try:
            self.store.set(key, orjson.dumps(value).decode())
        except RuntimeError as error:
            raise self._lost(key, error) from error

    def hear(self, key: str) -> Any:
        """What stands there, as soon as it does."""
        try:
            return orjson.loads(self.store.get(key))
        except RuntimeError as error:
            raise self._lost(key, error) from error

    def hear_all(self, key: str) -> list[Any]:
        """What each receiver puts there, as soon as all have."""
        return [self.hear(f"{key}/{rank}") for rank in range(1, self._seat.size)]

    def tell_mine(self, key: str, value: Any = None) -> None:
        """What `hear_all` hears of this receiver."""
        self.tell(f"{key}/{self._seat.rank}", value)

    def wipe(self, keys: Iterable[str]) -> None:
        """Take off the board what all have read."""
        for key in keys:
            self.store.delete_key(key)

    def wipe_all(self, keys: Iterable[str]) -> None:
        """Take off what receivers put there."""
        self.wipe(f"{key}/{rank}" for key in keys for rank in range(1, self._seat.size))

    def _lost(self, key: str, error: RuntimeError) -> WeightTransferError:
        first_line = str(error).partition("\n")[0]
        return WeightTransferError(
            f"end {self._seat.rank} of {self._seat.size} of a weight transfer heard nothing of {key!r} within "
            f"{self._seat.timeout_seconds:g} seconds, or the sender is gone: {first_line}"
        )
