"""Memory is noted under the phase it was held in."""

import pytest
import torch

from agentverl.device_memory import HOST, PhaseMemory, release_cached


def test_a_phase_within_another_ends_before_the_outer_one_goes_on() -> None:
    memory = PhaseMemory()
    assert memory.enter("gen") is None
    with memory.phase("update_weights"):
        pass
    assert memory.enter(None) == "gen"
    taken = memory.take()
    assert set(taken) == {f"{HOST}/gen", f"{HOST}/update_weights"}
    assert memory.take() == {}


def test_a_phase_that_lasts_is_noted_each_time() -> None:
    memory = PhaseMemory()
    memory.enter("gen")
    first = memory.take()[f"{HOST}/gen"]
    held = torch.ones(2**25)  # 128 MiB
    assert memory.take()[f"{HOST}/gen"] > first + 0.1
    del held


def test_the_peaks_of_a_gpu_are_those_within_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU: its counters are replaced by numbers."""
    peaks = iter([1, 5, 2])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks) * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 8 * 2**30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    memory = PhaseMemory()
    with memory.phase("update_actor"):
        pass
    taken = memory.take()
    assert taken["perf/max_memory_allocated_gb/update_actor"] == 5
    assert taken["perf/max_memory_allocated_gb"] == 5
    assert taken["perf/max_memory_reserved_gb"] == 8


def test_a_cpu_keeps_nothing_to_give_back() -> None:
    release_cached("cpu")
