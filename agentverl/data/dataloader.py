"""Prompts in batches, epoch after epoch, in an order that a resumed run takes up exactly."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from agentverl.errors import DatasetError
from agentverl.settings.seeds import derive_seed


class PromptLoader:
    """An endless iterator over batches of `batch_size` rows; each row gets the `uid` `<epoch>-<position>`.

    The order of an epoch follows from seed and epoch alone. Rows that do not fill a last batch wait for an epoch in
    which the order puts them elsewhere (without `shuffle` never). A `batch_size` of 0 makes no batch.

    Raises:
        DatasetError: fewer rows than make one batch.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], *, batch_size: int, shuffle: bool = True, seed: int = 0) -> None:
        if len(rows) < batch_size:
            raise DatasetError(
                f"{len(rows)} rows do not make a batch of data.train_batch_size={batch_size}; lower it or give more"
            )
        self._rows = rows
        self.batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        self._taken = 0
        self._order: list[int] = self._order_of(0)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._epoch

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch."""
        return len(self._rows) // self.batch_size if self.batch_size else 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        return self

    def __next__(self) -> list[dict[str, Any]]:
        return self.take(self.batch_size)

    def take(self, count: int) -> list[dict[str, Any]]:
        """The next `count` rows, at most a batch; an epoch ends where less than a batch is left of it."""
        positions = self._order[self._taken : self._taken + min(count, self.batch_size)]
        rows = [{**self._rows[position], "uid": f"{self._epoch}-{position}"} for position in positions]
        self._taken += len(rows)
        if len(self._rows) - self._taken < self.batch_size:
            self._move_to(self._epoch + 1, 0)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch starts, and what the order depends on; JSON holds it."""
        return {"epoch": self._epoch, "taken": self._taken, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state_dict` was called.

        Raises:
            DatasetError: the state is of other rows, another batch size, order or seed.
        """
        different = [
            f"{key} was {state.get(key)!r} and is {value!r}"
            for key, value in self._identity().items()
            if state.get(key) != value
        ]
        if different:
            raise DatasetError(f"the prompts cannot go on where they stopped: {', '.join(different)}")
        self._move_to(int(state["epoch"]), int(state["taken"]))

    def _identity(self) -> dict[str, Any]:
        return {
            "rows": len(self._rows),
            "batch_size": self.batch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    def _move_to(self, epoch: int, taken: int) -> None:
        if epoch != self._epoch:
            self._order = self._order_of(epoch)
        self._epoch, self._taken = epoch, taken

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._rows)))
        if self._shuffle:
            random.Random(derive_seed(self._seed, "order", epoch)).shuffle(order)
        return order
