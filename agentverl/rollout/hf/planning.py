"""What one forward pass computes: the next token of each decoding row, and prompts as far as the budget reaches."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from agentverl.rollout.hf.attention import Segment
from agentverl.rollout.hf.rows import Rows

_MASK_ELEMENTS = 2**24  # of one prefill behind a cached prefix, whose mask has to be built
_PROGRESS = 16  # prompt tokens read in any step, however many rows decode


@dataclass(frozen=True, slots=True)
class Step:
    """A packed forward pass over N tokens; `sampled` rows get a token, from the logits at `keep` (None: all N)."""

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    segments: list[Segment]
    keep: npt.NDArray[np.int64] | None
    sampled: int
    read: int
    """Rows that are part of the step; the last one may be read in part."""


def plan(rows: Rows, run_ends: list[int], budget: int, device: torch.device) -> Step:
    """The next step: all decoding rows, in runs that end at `run_ends`, then prefills within `budget` tokens."""
    decoding = rows.decoding
    numbers, last = rows.company(decoding).numbers, rows.length[:decoding] - 1
    ids, positions, token_rows = [rows.ids[numbers, last]], [last], [numbers]
    segments = [
        _segment(rows, (start, end), (start, end), 1, device)
        for start, end in zip([0, *run_ends], run_ends, strict=False)
        if start < end <= decoding
    ]
    if decoding == len(rows):
        return Step(ids[0], numbers, last, segments, keep=None, sampled=decoding, read=decoding)
    counts = _prefills(rows, budget)
    for row, count in enumerate(counts, start=decoding):
        first = int(rows.computed[row])
        ids.append(rows.ids[row, first : first + count])
        positions.append(np.arange(first, first + count))
        token_rows.append(np.full(count, row))
    segments += _prefill_segments(rows, counts, device)
    read = decoding + len(counts)
    partly = bool(counts) and rows.computed[read - 1] + counts[-1] < rows.length[read - 1]
    ends = np.concatenate([numbers, decoding + np.cumsum(np.array(counts, np.int64)) - 1])
    return Step(
        ids=np.concatenate(ids),
        rows=np.concatenate(token_rows),
        positions=np.concatenate(positions),
        segments=segments,
        keep=(ends[:-1] if partly else ends).astype(np.int64) if counts else None,
        sampled=read - partly,
        read=read,
    )


def _prefills(rows: Rows, budget: int) -> list[int]:
    """How many tokens of each row behind the decoding ones are read now."""
    room = max(budget - rows.decoding, _PROGRESS)
    counts = []
    for row in range(rows.decoding, len(rows)):
        computed, length = int(rows.computed[row]), int(rows.length[row])
        count = min(length - computed, room)
        if computed:
            count = min(count, max(1, _MASK_ELEMENTS // length))
        if count == 0:
            break
        counts.append(count)
        room -= count
        if computed + count < length:
            break
    return counts


def _prefill_segments(rows: Rows, counts: list[int], device: torch.device) -> list[Segment]:
    """Rows next to each other that read as much, behind as much, share a segment."""
    segments: list[Segment] = []
    shape: tuple[int, int] | None = None
    start = rows.decoding
    for row, count in enumerate(counts, start=rows.decoding):
        stop = start + count
        if (count, int(rows.computed[row])) == shape:
            first, begin = segments[-1].first, segments[-1].start
            segments[-1] = _segment(rows, (first, row + 1), (begin, stop), count, device)
        else:
            segments.append(_segment(rows, (row, row + 1), (start, stop), count, device))
        shape, start = (count, int(rows.computed[row])), stop
    return segments


def _segment(rows: Rows, of: tuple[int, int], tokens: tuple[int, int], queries: int, device: torch.device) -> Segment:
    lengths = rows.computed[of[0] : of[1]] + queries
    longest = int(lengths.max())
    return Segment(
        first=of[0],
        last=of[1],
        start=tokens[0],
        stop=tokens[1],
        queries=queries,
        lengths=torch.from_numpy(lengths).to(device),
        keys=longest,
        even=longest == int(lengths.min()),
    )


def runs(lengths: list[int], allowance: int) -> list[int]:
    """Ends of runs of rows that are attended to together, each padded to its longest row.

    A run is cut where padding would read more than `allowance` keys in vain: what one more attention call costs.
    """
    if lengths and max(lengths) * len(lengths) - sum(lengths) <= allowance:
        return [len(lengths)]
    ends: list[int] = []
    start = total = longest = 0
    for row, length in enumerate(lengths):
        longest = max(longest, length)
        total += length
        if (row + 1 - start) * longest - total > allowance and row > start:
            ends.append(row)
            start, total, longest = row, length, length
    if lengths:
        ends.append(len(lengths))
    return ends
