"""Where the keys and values of running sequences lie: one slot a row, all layers, grown as rows get longer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One token's keys and values in one layer."""

    heads: int
    key_size: int
    value_size: int


class _Bank:
    """The slots of all layers of one shape: keys (layers, slots, heads, capacity, key_size), values alike."""

    def __init__(self, shape: LayerShape, layers: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.keys = torch.zeros(layers, 0, shape.heads, 0, shape.key_size, dtype=dtype, device=device)
        self.values = torch.zeros(layers, 0, shape.heads, 0, shape.value_size, dtype=dtype, device=device)
        self.index = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def bytes_per_token(self) -> int:
        sizes = self.shape.key_size + self.shape.value_size
        return self.keys.shape[0] * self.shape.heads * sizes * self.keys.element_size()

    def resize(self, slots: int, capacity: int, rows: int, length: int) -> None:
        self.keys = _resized(self.keys, slots, capacity, rows, length)
        self.values = _resized(self.values, slots, capacity, rows, length)

    def point_at(self, rows: Ids, positions: Ids) -> None:
        slot = rows[:, None] * self.shape.heads + np.arange(self.shape.heads)
        index = slot * self.keys.shape[3] + positions[:, None]
        self.index = torch.from_numpy(index.reshape(-1)).to(self.keys.device)


def _resized(old: torch.Tensor, slots: int, capacity: int, rows: int, length: int) -> torch.Tensor:
    # Zeros, because what is masked out is still multiplied: uninitialised memory may hold NaN.
    layers, _, heads, _, size = old.shape
    new = torch.zeros(layers, slots, heads, capacity, size, dtype=old.dtype, device=old.device)
    new[:, :rows, :, :length] = old[:, :rows, :, :length]
    return new


class PackedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """A layer of a cache as transformers' models see it in packed steps: it masks nothing and starts nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: the pool is made before the first forward pass."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


class _SlotLayer(PackedLayer):
    """One layer of the pool, as transformers' models see it: new keys and values go to the slots of their rows."""

    def __init__(self, bank: _Bank, number: int) -> None:
        super().__init__()
        self.bank, self.number = bank, number

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        bank = self.bank
        keys, values = bank.keys[self.number], bank.values[self.number]
        keys.view(-1, keys.shape[-1]).index_copy_(0, bank.index, _by_token(key_states).to(keys.dtype))
        values.view(-1, values.shape[-1]).index_copy_(0, bank.index, _by_token(value_states).to(values.dtype))
        return keys, values


def _by_token(states: torch.Tensor) -> torch.Tensor:
    return states[0].transpose(0, 1).reshape(-1, states.shape[-1])


@dataclass(slots=True)
class Snapshot:
    """The first `count` tokens of one row, outside the pool: (keys, values) of each bank."""

    count: int
    banks: list[tuple[torch.Tensor, torch.Tensor]]

    @property
    def memory_bytes(self) -> int:
        return sum(tensor.nbytes for pair in self.banks for tensor in pair)


class KVPool:
    """Slots for the running rows; row i of a step lies in slot i."""

    def __init__(self, layers: list[LayerShape], dtype: torch.dtype, device: torch.device) -> None:
        counts = {shape: layers.count(shape) for shape in dict.fromkeys(layers)}
        banks = {shape: _Bank(shape, count, dtype, device) for shape, count in counts.items()}
        self._banks = list(banks.values())
        used = dict.fromkeys(banks, 0)
        cache_layers = []
        for shape in layers:
            cache_layers.append(_SlotLayer(banks[shape], used[shape]))
            used[shape] += 1
        self.cache = Cache(layers=cache_layers)
        self.slots = self.capacity = 0

    @property
    def bytes_per_token(self) -> int:
        return sum(bank.bytes_per_token for bank in self._banks)

    @property
    def memory_bytes(self) -> int:
        return self.bytes_per_token * self.slots * self.capacity

    def resize(self, slots: int, capacity: int, *, rows: int, length: int) -> None:
        """Make room for `slots` rows of `capacity` tokens, keeping the first `length` tokens of the first `rows`."""
        for bank in self._banks:
            bank.resize(slots, capacity, rows, length)
        self.slots, self.capacity = slots, capacity

    def release(self) -> None:
        """Give all memory back."""
        self.resize(0, 0, rows=0, length=0)

    def point_at(self, rows: Ids, positions: Ids) -> None:
        """Say where the tokens of the next forward pass (N) go."""
        for bank in self._banks:
            bank.point_at(rows, positions)

    def move(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of one row over another."""
        for tensor in self._tensors():
            tensor[:, target, :, :count] = tensor[:, source, :, :count]

    def reorder(self, order: torch.Tensor, length: int) -> None:
        """Row i becomes what row order[i] was; tokens after `length` are lost."""
        for tensor in self._tensors():
            for layer in tensor:
                layer[: len(order), :, :length] = layer[order, :, :length]

    def take(self, row: int, count: int) -> Snapshot:
        """A copy of the first `count` tokens of a row."""
        return Snapshot(
            count,
            [(bank.keys[:, row, :, :count].clone(), bank.values[:, row, :, :count].clone()) for bank in self._banks],
        )

    def put(self, row: int, snapshot: Snapshot, count: int) -> None:
        """Write the first `count` tokens of a snapshot into a row."""
        for bank, (keys, values) in zip(self._banks, snapshot.banks, strict=True):
            bank.keys[:, row, :, :count] = keys[:, :, :count]
            bank.values[:, row, :, :count] = values[:, :, :count]

    def _tensors(self) -> Iterable[torch.Tensor]:
        for bank in self._banks:
            yield bank.keys
            yield bank.values
