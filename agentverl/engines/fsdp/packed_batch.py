"""From the ragged rows of a micro-batch to one packed row, and from its tokens back."""

from dataclasses import dataclass

import torch

from agentverl.engines.fsdp.packed_layout import PackedLayout
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """N tokens of the sequences that have something to predict, longest first, and the M tokens to predict.

    A sequence ends where its last prediction is made: what comes after it changes nothing.
    """

    input_ids: torch.Tensor
    """(1, N)"""
    position_ids: torch.Tensor
    """(1, N), from 0 in each sequence."""
    layout: PackedLayout
    predicting: torch.Tensor
    """(M) tokens of the packed row that predict one."""
    labels: torch.Tensor
    """(M) the tokens predicted."""
    temperature: torch.Tensor
    """(M) float32"""
    places: torch.Tensor
    """(M) where the predicted tokens stand among all response tokens, one row after the other."""

    @classmethod
    def of(cls, data: DataProto, device: torch.device) -> "PackedBatch":
        """Pack the rows of a micro-batch."""
        prompts, responses = data.batch.ragged("prompts"), data.batch.ragged("responses")
        mask = response_mask(data)
        lengths_b = forward_lengths(data)
        lengths = lengths_b.tolist()
        order = lengths_b.argsort(descending=True, stable=True).tolist()[: int((lengths_b > 0).sum())]
        starts_b = torch.zeros_like(lengths_b)
        packed_lengths = [lengths[row] for row in order]
        starts_b[order] = torch.tensor([0, *packed_lengths[:-1]][: len(order)], dtype=torch.long).cumsum(0)
        places = mask.values.nonzero().squeeze(1)
        rows_m = torch.repeat_interleave(torch.arange(len(mask)), mask.lengths)[places]
        shift_b = starts_b + prompts.lengths - 1 - responses.offsets[:-1]
        temperature = data.batch.ragged("temperature").values[places] if "temperature" in data.batch else None
        pieces = [torch.cat([prompts[row], responses[row]])[: lengths[row]] for row in order]
        return cls(
            torch.cat(pieces)[None].to(device) if pieces else torch.zeros(1, 0, dtype=torch.long, device=device),
            torch.cat([torch.arange(length) for length in packed_lengths or [0]])[None].to(device),
            PackedLayout.of(packed_lengths).to(device),
            (shift_b[rows_m] + places).to(device),
            responses.values[places].to(device),
            (torch.ones(len(places)) if temperature is None else _trained(temperature)).to(device),
            places.to(device),
        )

    @property
    def tokens(self) -> int:
        """N"""
        return self.input_ids.shape[1]


def response_mask(data: DataProto) -> Ragged:
    """The batch's `response_mask`, or ones for all response tokens."""
    if "response_mask" in data.batch:
        return data.batch.ragged("response_mask")
    responses = data.batch.ragged("responses")
    return responses.like(torch.ones_like(responses.values))


def forward_lengths(data: DataProto) -> torch.Tensor:
    """(B) tokens of each sequence that a forward pass has to see: up to the one that predicts the last unmasked token.

    0 where nothing is predicted.
    """
    mask = response_mask(data)
    rows = torch.repeat_interleave(torch.arange(len(mask)), mask.lengths)
    nth = torch.arange(len(rows)) - mask.offsets[:-1][rows] + 1
    nth = torch.where(mask.values != 0, nth, 0)
    used_b = torch.zeros(len(mask), dtype=torch.long).scatter_reduce_(0, rows, nth, "amax")
    return torch.where(used_b > 0, data.batch.ragged("prompts").lengths + used_b - 1, 0)


def _trained(temperature: torch.Tensor) -> torch.Tensor:
    # Greedy tokens count with the probability that they have at temperature 1, as on the rollout server.
    return torch.where(temperature > 0, temperature, 1.0).float()
