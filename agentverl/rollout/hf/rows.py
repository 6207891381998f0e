"""The running requests as a table, one row each, so that a step touches arrays and not requests.

The first `decoding` rows wait for one token only; behind them stand the rows whose prompt is still being read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from agentverl.rollout.hf.requests import Ids, Request
from agentverl.rollout.hf.sampling import Bent, Draw

Scalar = TypeVar("Scalar", bound=np.generic)

UNIFORMS = 64
"""Random numbers drawn at once for a row; a block of a request's stream, so results do not depend on it."""


@dataclass(frozen=True, slots=True)
class Company:
    """What rows have together, worked out once for all steps that they make together."""

    numbers: npt.NDArray[np.int64]
    """From 0 on."""
    temperatures: torch.Tensor
    greedy: bool
    tempered: bool
    bent: list[int]
    stops: list[int]
    """Rows with stop strings."""
    has_ends: bool


class Rows:
    """Arrays over rows (R). `length` counts prompt and answer, `computed` the tokens that the pool holds."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.decoding = 0
        self._company: Company | None = None
        self.length = np.zeros(0, np.int64)
        self.computed = np.zeros(0, np.int64)
        self.limit = np.zeros(0, np.int64)
        self.prompt_length = np.zeros(0, np.int64)
        self.temperature = np.zeros(0, np.float32)
        self.bends = np.zeros(0, np.bool_)
        self.ends = np.zeros((0, 1), np.int64)
        self.uniforms = np.zeros((0, UNIFORMS))
        self.ids = np.zeros((0, 0), np.int64)
        self.log_probs = np.zeros((0, 0), np.float32)

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def longest(self) -> int:
        return int(self.length[: len(self)].max()) if self.requests else 0

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for as many rows and tokens as the pool has, and one token that is sampled but not read."""
        self._company = None
        for name in ("length", "computed", "limit", "prompt_length", "temperature", "bends", "uniforms"):
            setattr(self, name, _resized(getattr(self, name), (slots, *getattr(self, name).shape[1:])))
        self.ends = _resized(self.ends, (slots, self.ends.shape[1]), fill=-1)
        self.ids = _resized(self.ids, (slots, capacity + 1))
        self.log_probs = _resized(self.log_probs, (slots, capacity + 1))

    def add(self, request: Request) -> int:
        """Put a request into the next row; there is room for it."""
        row, length, prompt_length = len(self.requests), len(request.ids), request.prompt_length
        self._company = None
        self.requests.append(request)
        self.length[row], self.computed[row] = length, 0
        self.limit[row], self.prompt_length[row] = request.limit, prompt_length
        self.temperature[row] = request.params.temperature
        self.bends[row] = request.params.bends_distribution
        if len(request.ends) > self.ends.shape[1]:
            self.ends = _resized(self.ends, (len(self.ends), len(request.ends)), fill=-1)
        self.ends[row] = -1
        self.ends[row, : len(request.ends)] = request.ends
        if len(request.uniforms):
            self.uniforms[row] = request.uniforms
        self.ids[row, :length] = request.ids
        self.log_probs[row, prompt_length:length] = request.log_probs
        return row

    def common_prefixes(self, ids: Ids) -> npt.NDArray[np.int64]:
        """How many tokens each row (R) begins with that `ids` begins with too; the last of `ids` does not count."""
        count, rows = min(len(ids) - 1, self.ids.shape[1]), len(self)
        equal = self.ids[:rows, :count] == ids[:count]
        shared = np.where(equal.all(axis=1), count, equal.argmin(axis=1)) if count else np.zeros(rows, np.int64)
        return np.minimum(shared, self.length[:rows])

    def find(self, ids: Ids, rows: Iterable[int]) -> int | None:
        """The first of some rows that holds just these ids."""
        count = len(ids)
        alike = (row for row in rows if self.length[row] == count and np.array_equal(self.ids[row, :count], ids))
        return next(alike, None)

    def company(self, count: int) -> Company:
        """The first `count` rows."""
        if self._company is None or len(self._company.numbers) != count:
            temperatures = self.temperature[:count].copy()
            self._company = Company(
                numbers=np.arange(count),
                temperatures=torch.from_numpy(temperatures),
                greedy=not temperatures.all(),
                tempered=bool((temperatures != 1).any()),
                bent=np.flatnonzero(self.bends[:count]).tolist(),
                stops=[row for row, request in enumerate(self.requests[:count]) if request.stop is not None],
                has_ends=bool((self.ends[:count] >= 0).any()),
            )
        return self._company

    def draw(self, count: int, device: torch.device) -> Draw:
        """How the first `count` rows are sampled next."""
        company = self.company(count)
        number = (self.length[:count] - self.prompt_length[:count]) % UNIFORMS
        if not number.all():
            for row in np.flatnonzero(number == 0):
                self.uniforms[row] = self.requests[row].random.random(UNIFORMS)
        return Draw(
            temperatures=company.temperatures.to(device),
            uniforms=torch.from_numpy(self.uniforms[company.numbers, number]).to(device),
            greedy=company.greedy,
            tempered=company.tempered,
            bent=[self._bent(row) for row in company.bent],
        )

    def _bent(self, row: int) -> Bent:
        params = self.requests[row].params
        counted = params.repetition_penalty != 1
        return Bent(row, params, np.unique(self.ids[row, : self.length[row]]) if counted else None)

    def append(self, tokens: npt.NDArray[np.int64], log_probs: npt.NDArray[np.float32]) -> None:
        """Add one sampled token to each of the first rows, which then decode."""
        count = len(tokens)
        rows, length = self.company(count).numbers, self.length[:count]
        self.ids[rows, length] = tokens
        self.log_probs[rows, length] = log_probs
        self.computed[:count] = length
        self.length[:count] = length + 1
        self.decoding = count

    def ended(self) -> npt.NDArray[np.bool_]:
        """Which decoding rows have just sampled a token that ends their answer."""
        company = self.company(self.decoding)
        if not company.has_ends:
            return np.zeros(self.decoding, np.bool_)
        last = self.ids[company.numbers, self.length[: self.decoding] - 1]
        return np.asarray((self.ends[: self.decoding] == last[:, None]).any(axis=1))

    def write_back(self, row: int) -> Request:
        """The request of a row, given the row's ids, log-probabilities and random numbers."""
        request, length = self.requests[row], self.length[row]
        request.ids = self.ids[row, :length].copy()
        request.log_probs = self.log_probs[row, request.prompt_length : length].copy()
        request.uniforms = self.uniforms[row].copy()
        return request

    def remove(self, row: int, run_ends: list[int]) -> list[tuple[int, int]]:
        """Take a row out and close the gap; returns the moves (source, target) that the pool has to repeat.

        Rows stand in runs that end at `run_ends` (ascending; updated). The last row of each run fills the gap left by
        the run before it, so runs stay whole with one move each.
        """
        self._company = None
        moves = []
        gap = row
        for number, end in enumerate(run_ends):
            if end <= row:
                continue
            if end - 1 != gap:
                self._move(end - 1, gap)
                moves.append((end - 1, gap))
            gap = end - 1
            run_ends[number] = gap
        self.requests.pop()
        self.decoding -= row < self.decoding
        return moves

    def _move(self, source: int, target: int) -> None:
        length = self.length[source]
        self.requests[target] = self.requests[source]
        for array in self._by_row():
            array[target] = array[source]
        self.ids[target, :length] = self.ids[source, :length]
        self.log_probs[target, :length] = self.log_probs[source, :length]

    def reorder(self, order: npt.NDArray[np.int64]) -> None:
        """Row i becomes what row order[i] was, for the first rows."""
        self._company = None
        count = len(order)
        self.requests[:count] = [self.requests[row] for row in order]
        for array in (*self._by_row(), self.ids, self.log_probs):
            array[:count] = array[order]

    def _by_row(self) -> tuple[npt.NDArray[Any], ...]:
        """What a row has once, whatever its length."""
        counts = (self.length, self.computed, self.limit, self.prompt_length)
        return (*counts, self.temperature, self.bends, self.ends, self.uniforms)

    def retract(self) -> None:
        """Forget that anything was computed: all rows are read again."""
        for row, request in enumerate(self.requests):
            request.preempted += bool(self.computed[row])
        self.computed[: len(self)] = 0
        self.decoding = 0

    def clear(self) -> list[Request]:
        """Take all rows out."""
        self._company = None
        requests, self.requests, self.decoding = self.requests, [], 0
        return requests


def _resized(old: npt.NDArray[Scalar], shape: tuple[int, ...], fill: int = 0) -> npt.NDArray[Scalar]:
    new = np.full(shape, fill, old.dtype) if fill else np.zeros(shape, old.dtype)
    kept = tuple(slice(0, min(before, after)) for before, after in zip(old.shape, shape, strict=True))
    new[kept] = old[kept]
    return new
