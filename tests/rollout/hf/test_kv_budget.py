"""How much memory KV caches may take."""

from hypothesis import given
from hypothesis import strategies as st

from agentverl.rollout.hf.kv_budget import budget_on_gpu

GIB = 2**30


def test_the_weights_and_a_pool_that_grows_stay_within_the_share() -> None:
    assert budget_on_gpu(total=80 * GIB, free=70 * GIB, weights=10 * GIB, utilization=0.5) == 20 * GIB


def test_what_is_not_free_cannot_be_used() -> None:
    assert budget_on_gpu(total=80 * GIB, free=6 * GIB, weights=10 * GIB, utilization=0.9) == 4 * GIB


def test_weights_beyond_the_share_leave_nothing() -> None:
    assert budget_on_gpu(total=80 * GIB, free=30 * GIB, weights=50 * GIB, utilization=0.5) == 0


@given(st.integers(1, 2**40), st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 1))
def test_a_pool_that_doubles_fits_beside_the_weights(total: int, free: float, weights: float, share: float) -> None:
    held = int(total * weights)
    budget = budget_on_gpu(total, int(total * free), held, share)
    assert budget >= 0
    assert budget == 0 or budget * 1.5 + held <= total * share + 2
    assert budget * 1.5 <= total * free + 2
