"""From the ragged rows of a micro-batch to one packed row, and from its tokens back."""

from dataclasses import dataclass

import torch

from agentverl.engines.fsdp.packed_layout import PackedLayout
from agentverl.engines.fsdp.shared_prompts import Family, families
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """N tokens of the sequences that have something to predict, and the M tokens to predict.

    A sequence ends where its last prediction is made: what comes after it changes nothing. A prompt that several
    sequences begin with is there once.
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
        responses, mask = data.batch.ragged("responses"), response_mask(data)
        order = _Order(data)
        places = mask.values.nonzero().squeeze(1)
        rows_m = mask.row_index[places]
        shift_b = torch.tensor(order.first_predicting) - responses.offsets[:-1]
        temperature = data.batch.ragged("temperature").values[places] if "temperature" in data.batch else None
        return cls(
            torch.cat(order.pieces)[None].to(device),
            torch.cat(order.positions)[None].to(device),
            order.layout.to(device),
            (shift_b[rows_m] + places).to(device),
            responses.values[places].to(device),
            (torch.ones(len(places)) if temperature is None else _trained(temperature)).to(device),
            places.to(device),
        )

    @classmethod
    def idle(cls, device: torch.device) -> "PackedBatch":
        """One token that predicts itself, for a rank without rows; what comes of it must count for nothing."""
        zero, row = torch.zeros(1, dtype=torch.long, device=device), torch.zeros(1, 1, dtype=torch.long, device=device)
        return cls(row, row, PackedLayout.of([1]), zero, zero, torch.ones(1, device=device), zero)

    @property
    def tokens(self) -> int:
        """N"""
        return self.input_ids.shape[1]


class _Order:
    """The pieces of the packed row: whole sequences, longest first, then shared prompts, each before its rows."""

    def __init__(self, data: DataProto) -> None:
        prompts = data.batch.ragged("prompts")
        self._prompts, self._responses = prompts.unbind(), data.batch.ragged("responses").unbind()
        self._lengths: list[int] = forward_lengths(data).tolist()
        self._tokens = 0
        self.first_predicting = [0] * len(self._lengths)
        """(B) the token of the packed row that predicts the first response token of each row."""
        self.pieces, self.positions = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0, dtype=torch.long)]
        found = families(prompts, self._lengths)
        alone = self._longest_first([row for family in found if not family.shared for row in family.rows])
        for row in alone:
            self._add_row(row, 0)
        self.layout = PackedLayout.of(
            [self._lengths[row] for row in alone], [self._add_family(family) for family in found if family.shared]
        )

    def _longest_first(self, rows: list[int]) -> list[int]:
        return sorted(rows, key=lambda row: -self._lengths[row])

    def _add_family(self, family: Family) -> tuple[int, list[int]]:
        rows = self._longest_first(family.rows)
        self._add(self._prompts[rows[0]][: family.shared], 0)
        for row in rows:
            self._add_row(row, family.shared)
        return family.shared, [self._lengths[row] - family.shared for row in rows]

    def _add_row(self, row: int, start: int) -> None:
        prompt = self._prompts[row]
        self.first_predicting[row] = self._tokens + len(prompt) - 1 - start
        self._add(torch.cat([prompt[start:], self._responses[row]])[: self._lengths[row] - start], start)

    def _add(self, ids: torch.Tensor, start: int) -> None:
        self.pieces.append(ids)
        self.positions.append(torch.arange(start, start + len(ids)))
        self._tokens += len(ids)


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
    rows = mask.row_index
    nth = torch.arange(len(rows)) - mask.offsets[:-1][rows] + 1
    nth = torch.where(mask.values != 0, nth, 0)
    used_b = torch.zeros(len(mask), dtype=torch.long).scatter_reduce_(0, rows, nth, "amax")
    return torch.where(used_b > 0, data.batch.ragged("prompts").lengths + used_b - 1, 0)


def _trained(temperature: torch.Tensor) -> torch.Tensor:
    # Greedy tokens count with the probability that they have at temperature 1, as on the rollout server.
    return torch.where(temperature > 0, temperature, 1.0).float()
