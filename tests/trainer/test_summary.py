"""The end of a run is told truthfully."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from agentverl.trainer.summary import Summary, ValidationPoint, say_goodbye, wilson_interval


def test_before_and_after_are_the_first_and_the_last_validation() -> None:
    points = [ValidationPoint(0, 0.25, 0.5), ValidationPoint(5, 0.5, 0.75), ValidationPoint(9, 0.75, 1.0)]
    summary = Summary.of(points, wall_seconds=12.34567, peak_memory_bytes=2**30, steps=9)
    assert summary.as_dict() == {
        "validation_before": 0.25,
        "validation_after": 0.75,
        "tool_call_rate_before": 0.5,
        "tool_call_rate_after": 1.0,
        "wall_seconds": 12.346,
        "peak_memory_bytes": 2**30,
        "steps": 9,
    }


def test_a_run_without_validation_has_none() -> None:
    assert Summary.of([], wall_seconds=1, peak_memory_bytes=1, steps=1).validation_after is None


@pytest.mark.parametrize(
    ("step", "known", "said"),
    [
        (0, (0.4, None), "Held-out success 0.400 before; not measured since"),
        (3, (None, 0.4), "Held-out success 0.400;"),
    ],
)
def test_one_validation_is_not_both_of_before_and_after(
    step: int, known: tuple[float | None, float | None], said: str, tmp_path: Path
) -> None:
    points = [ValidationPoint(step, 0.4, 0.5)]
    summary = Summary.of(points, wall_seconds=60, peak_memory_bytes=2**30, steps=3)
    assert (summary.validation_before, summary.validation_after) == known
    output = io.StringIO()
    say_goodbye(summary, tmp_path, quickstart=False, console=Console(file=output, width=200))
    assert said in output.getvalue()


@pytest.mark.parametrize(
    ("share", "count", "low", "high"), [(0.5, 100, 0.4038, 0.5962), (0.0, 10, 0.0, 0.2775), (1.0, 128, 0.9709, 1.0)]
)
def test_the_interval_is_wilsons(share: float, count: int, low: float, high: float) -> None:
    assert wilson_interval(share, count) == pytest.approx((low, high), abs=1e-4)


def test_the_last_words_name_what_exists_and_only_that(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    output = io.StringIO()
    summary = Summary.of([ValidationPoint(0, 0.4, 0.5)], wall_seconds=60, peak_memory_bytes=2**30, steps=3)
    say_goodbye(summary, tmp_path, quickstart=True, console=Console(file=output, width=200))
    said = output.getvalue()
    assert "metrics.jsonl" in said
    assert "curves.png" not in said
    assert f"agentverl show {tmp_path}" in said
    assert "trainer.seed=1" in said
