"""Rows of a batch that are read only, so that they need no copy where all are chosen."""

from collections.abc import Sequence

from agentverl.protocol.data_proto import DataProto


def chosen_rows(data: DataProto, rows: Sequence[int]) -> DataProto:
    """The rows in the given order: a copy, or the batch's own columns where they are all of it as it stands."""
    return data.select() if list(rows) == list(range(len(data))) else data.select_idxs(rows)
