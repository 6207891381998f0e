"""Times are summed by phase and reported under verl's names."""

import time

import pytest

from agentverl.trainer.stopwatch import Stopwatch


def test_phases_nest_and_add_up_also_where_they_raise() -> None:
    watch = Stopwatch()
    with watch.phase("step"):
        for _ in range(2):
            with watch.phase("gen"):
                time.sleep(0.01)
        with pytest.raises(ValueError, match="broken"), watch.phase("adv"):
            raise ValueError("broken")
    assert watch.seconds.keys() == {"step", "gen", "adv"}
    assert watch.seconds["step"] >= watch.seconds["gen"] >= 0.02


def test_metrics_have_verls_names_and_units() -> None:
    watch = Stopwatch()
    watch.seconds = {"step": 2.0, "gen": 0.5, "update_actor": 1.0, "testing": 0.25}
    assert watch.metrics(total_tokens=200, response_tokens=50) == {
        "timing_s/step": 2.0,
        "timing_s/gen": 0.5,
        "timing_s/update_actor": 1.0,
        "timing_s/testing": 0.25,
        "timing_per_token_ms/gen": 10.0,
        "timing_per_token_ms/update_actor": 5.0,
        "perf/total_num_tokens": 200,
        "perf/time_per_step": 2.0,
        "perf/throughput": 100.0,
    }


def test_a_step_without_tokens_has_no_time_a_token() -> None:
    watch = Stopwatch()
    watch.seconds = {"gen": 0.5}
    assert watch.metrics(total_tokens=0, response_tokens=0) == {
        "timing_s/gen": 0.5,
        "perf/total_num_tokens": 0,
        "perf/time_per_step": 0.0,
    }
