"""What benchmarks report, and the processes whose turns they interleave."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SIDE = """
import sys
sys.path.insert(0, {sides!r})
from turns import serve
numbers = iter([9.0, 1.0, 2.0, 6.0])
print("a library says something first")
serve(lambda: {{"seconds": next(numbers)}})
"""


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("comparison")


def test_a_ratio_is_a_gain_for_rates_and_for_costs(comparison: ModuleType) -> None:
    assert comparison.Case.of_rates("speed", 30.0, 20.0, "tokens/s", 1.4).ratio == 1.5
    assert comparison.Case.of_costs("memory", 2e9, 3e9, "bytes", 1.0).ratio == 1.5


def test_the_last_line_holds_every_case_and_the_smallest_gain_over_what_is_required(
    comparison: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison.report(
        [
            comparison.Case.of_rates("speed", 30.0, 20.0, "tokens/s", 1.5),
            comparison.Case.of_costs("memory", 4.0, 3.0, "bytes", 1.0),
        ]
    )
    reported = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [set(case) for case in reported["cases"]] == [{"name", "ours", "other", "unit", "ratio", "required"}] * 2
    assert reported["ratio"] == 0.75


def test_a_side_works_in_turns_and_its_warm_up_does_not_count(comparison: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "side.py"
    script.write_text(SIDE.format(sides=str(BENCHMARKS / "sides")))
    side = comparison.Side("numbers", Path(sys.executable), script, threads=1)
    side.turn(warm_up=True)
    for _ in range(3):
        side.turn()
    assert side.median("seconds") == 2.0
    assert side.end()["peak_memory_bytes"] > 2**20


def test_a_side_that_dies_is_named(comparison: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "side.py"
    script.write_text("input()")
    with pytest.raises(RuntimeError, match="'broken' ended without an answer"):
        comparison.Side("broken", Path(sys.executable), script, threads=1).turn()
