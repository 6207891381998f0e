"""What memory this process holds in each phase of a step, and how what is free there is given back."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

_GIB = 2**30
ALLOCATED, RESERVED, HOST = "perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb", "perf/cpu_memory_gb"
"""Metrics, in GiB. The first two are verl's names: the most on the GPU, in tensors and with what is kept for them."""


def release_cached(device: torch.device | str) -> None:
    """Give back what PyTorch keeps of a GPU's freed memory, so that other processes can have it."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


class PhaseMemory:
    """Notes memory phase by phase. A process is in one phase at a time, or in none.

    On a GPU it is the most that was held within the phase. Of the host it is what the process holds when the phase
    ends: a peak within it is mostly still held then, as freed blocks stay with the process.
    """

    def __init__(self) -> None:
        self._phase: str | None = None
        self._noted: dict[str, float] = {}
        self._most: dict[str, float] = {}

    def enter(self, phase: str | None) -> str | None:
        """Begin a phase, or None for what is between phases; returns the one that ends with it."""
        self._note()
        ended, self._phase = self._phase, phase
        return ended

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Within it the process is in this phase, afterwards in the one that was before."""
        before = self.enter(name)
        try:
            yield
        finally:
            self.enter(before)

    def take(self) -> dict[str, float]:
        """`<metric>/<phase>` of the phases since the last call, and the two of the GPU over the whole run."""
        self._note()
        noted, self._noted = self._noted, {}
        return noted | self._most

    def _note(self) -> None:
        if torch.cuda.is_initialized():
            peaks = {ALLOCATED: torch.cuda.max_memory_allocated(), RESERVED: torch.cuda.max_memory_reserved()}
            torch.cuda.reset_peak_memory_stats()
            for name, peak in peaks.items():
                _raise(self._most, name, peak / _GIB)
                self._raise_in_phase(name, peak)
        if self._phase is not None:
            self._raise_in_phase(HOST, psutil.Process().memory_info().rss)

    def _raise_in_phase(self, name: str, held_bytes: int) -> None:
        if self._phase is not None:
            _raise(self._noted, f"{name}/{self._phase}", held_bytes / _GIB)


def _raise(peaks: dict[str, float], name: str, value: float) -> None:
    peaks[name] = max(peaks.get(name, 0.0), value)


of_process = PhaseMemory()
"""Memory belongs to the process, whichever roles live in it."""
