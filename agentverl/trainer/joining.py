"""The sequences of a trajectory joined in order for estimators, and what comes of them split again."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.grouping import rows_by
from agentverl.protocol.ragged import Ragged


class JoinedTrajectories:
    """A batch with one row for each trajectory and role: `U` rows of its sequences one after the other.

    So splitting a trajectory changes no group statistic, and what runs along time passes from one sequence to the next.
    """

    def __init__(self, batch: DataProto) -> None:
        fields = batch.non_tensor_batch
        members = rows_by(zip(fields["trajectory_id"], fields["role"], strict=True))
        self._batch = batch
        self.units = [sorted(rows, key=lambda row: fields["sequence_index"][row]) for rows in members.values()]
        """(U) the rows of the batch that each joined one is made of."""
        responses = batch.batch.ragged("response_mask")
        lengths = responses.lengths.tolist()
        self._shape = len(self.units), max((sum(lengths[row] for row in rows) for rows in self.units), default=0)
        shift = torch.tensor(self._first_cells(lengths), dtype=torch.int64) - responses.offsets[:-1]
        self._cells = torch.arange(len(responses.values)) + shift[responses.row_index]
        """For each response token of the batch, its cell in a (U, T) matrix whose rows stand one after the other."""

    def column(self, name: str) -> torch.Tensor:
        """A ragged column of the batch, (U, T) padded with zeros."""
        return self._joined(self._batch.batch.ragged(name).values)

    def turns(self) -> torch.Tensor:
        """(U, T) the number of the policy's turn that a token belongs to, from 0; -1 for all other tokens."""
        column, first = self._batch.batch.ragged("turn_index"), self._first_turns()
        shift = torch.tensor(first, dtype=column.values.dtype)[column.row_index]
        return self._joined(torch.where(column.values >= 0, column.values + shift, column.values), padding=-1)

    def of_each_turn(self, name: str) -> list[list[Any]]:
        """(U) lists, one entry for each of the policy's turns; the field has such a list for each row of the batch."""
        values = self._batch.non_tensor_batch[name]
        return [[entry for row in rows for entry in values[row]] for rows in self.units]

    def field(self, values: Sequence[Any] | np.ndarray[Any, Any]) -> list[Any]:
        """(U) the entry of each joined row's first sequence; `values` has one for each row of the batch."""
        return [values[rows[0]] for rows in self.units]

    def split(self, padded: torch.Tensor) -> Ragged:
        """Rows (U, T) as a column of the batch again."""
        return self._batch.batch.ragged("response_mask").like(padded.reshape(-1)[self._cells])

    def _first_cells(self, lengths: Sequence[int]) -> list[int]:
        """(B) the cell of each row's first token."""
        first = [0] * len(lengths)
        for unit, rows in enumerate(self.units):
            cell = unit * self._shape[1]
            for row in rows:
                first[row] = cell
                cell += lengths[row]
        return first

    def _first_turns(self) -> list[int]:
        """(B) the number of each row's first turn within its trajectory and role."""
        turns = self._batch.non_tensor_batch["state_keys"]
        first = [0] * len(turns)
        for rows in self.units:
            count = 0
            for row in rows:
                first[row] = count
                count += len(turns[row])
        return first

    def _joined(self, values: torch.Tensor, *, padding: int = 0) -> torch.Tensor:
        joined = values.new_full(self._shape, padding)
        joined.view(-1)[self._cells] = values
        return joined
