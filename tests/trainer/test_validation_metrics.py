"""Validation metrics have verl's names and mean what they say."""

import numpy as np
import pytest

from agentverl.trainer.validation_metrics import ValidationSample, validation_metrics


def test_one_sample_a_prompt_gives_the_mean_only() -> None:
    samples = [ValidationSample(str(n), "math", {"reward": float(n % 2), "length": 3.0}) for n in range(4)]
    assert validation_metrics(samples) == {
        "val-core/math/reward/mean@1": 0.5,
        "val-aux/math/length/mean@1": 3.0,
    }


def test_acc_is_the_core_variable_where_it_exists() -> None:
    metrics = validation_metrics([ValidationSample("a", "math", {"reward": -1.0, "acc": 1.0})])
    assert metrics == {"val-core/math/acc/mean@1": 1.0, "val-aux/math/reward/mean@1": -1.0}


def test_best_worst_and_majority_of_several_samples() -> None:
    samples = [
        ValidationSample("a", "math", {"reward": value}, prediction)
        for value, prediction in ((1.0, "42"), (1.0, "42"), (0.0, "41"), (1.0, "42"))
    ]
    state = np.random.get_state(legacy=False)["state"]["key"].copy()
    metrics = validation_metrics(samples)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], state)
    assert metrics["val-core/math/reward/mean@4"] == 0.75
    assert metrics["val-core/math/reward/best@4/mean"] == pytest.approx(1 - 0.25**4, abs=0.02)
    assert metrics["val-aux/math/reward/worst@2/mean"] == pytest.approx(0.75**2, abs=0.05)
    assert metrics["val-core/math/reward/maj@4/mean"] > 0.8
    assert metrics["val-aux/math/reward/std@4"] == pytest.approx(np.std([1, 1, 0, 1]))


def test_a_value_that_only_some_samples_have_is_averaged_over_those() -> None:
    samples = [ValidationSample("a", "s", {"reward": 1.0, "extra": 4.0}), ValidationSample("b", "s", {"reward": 0.0})]
    metrics = validation_metrics(samples)
    assert metrics["val-aux/s/extra/mean@1"] == 4.0
    assert metrics["val-core/s/reward/mean@1"] == 0.5
