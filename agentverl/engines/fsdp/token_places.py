"""Where the predicted tokens of a micro-batch stand, in its rows and in those of the whole batch."""

import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged


def padded(values: torch.Tensor, places: torch.Tensor, responses: Ragged) -> torch.Tensor:
    """(M) values at their places among all response tokens, as (B, T) with zeros elsewhere."""
    width = int(responses.lengths.max()) if len(responses) else 0
    rows = responses.row_index
    columns = torch.arange(len(rows)) - responses.offsets[:-1][rows]
    index = (rows * width + columns).to(values.device)[places]
    flat = torch.zeros(len(responses) * width, dtype=values.dtype, device=values.device)
    return flat.index_copy(0, index, values).view(len(responses), width)


def places_in(responses: Ragged, micro_batch: DataProto, rows: list[int]) -> torch.Tensor:
    """For each response token of the micro-batch, its place among those of the whole batch."""
    mine = micro_batch.batch.ragged("responses")
    shift = responses.offsets[:-1][rows] - mine.offsets[:-1]
    return torch.arange(len(mine.values)) + shift[mine.row_index]
