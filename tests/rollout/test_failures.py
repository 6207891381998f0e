"""The share of failed trajectories that a run bears, to the trajectory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import TrainingStoppedError
from agentverl.rollout.episode import Episode, EpisodeResult, Failure
from agentverl.rollout.failures import FailureLedger

EPISODE = Episode(uid="0-0", sample=0, row={}, sampling_params={})
FAILURE = Failure(boundary="sandbox", message="no room")
WELL = EpisodeResult(episode=EPISODE, score=1.0)
FAILED = EpisodeResult(episode=EPISODE, failure=FAILURE, termination=FAILURE.termination)


def stops(ledger: FailureLedger, *, few: bool = False) -> str:
    """What the run stops with, if it does."""
    try:
        ledger.check(few=few)
    except TrainingStoppedError as error:
        return str(error)
    return ""


@given(st.lists(st.booleans(), max_size=600), st.sampled_from([0, 1, 3, 10]))
def test_it_stops_from_the_first_trajectory_on_that_is_too_much(failed: list[bool], tenths: int) -> None:
    ledger, expected = FailureLedger(tenths / 10), ""
    for number, fails in enumerate(failed, 1):
        ledger.note(FAILED if fails else WELL)
        last = failed[max(0, number - 512) : number]
        if not expected and number >= 32 and 10 * sum(last) > tenths * len(last) and sum(last) > 1:
            expected = f"{sum(last)} of the last {len(last)} trajectories failed"
        assert bool(expected) == ledger.too_many
        assert stops(ledger).startswith(expected)
        assert bool(expected) == bool(stops(ledger))


@pytest.mark.parametrize(
    ("failures", "total", "too_many"), [(1, 1, True), (1, 2, False), (2, 20, False), (2, 19, True)]
)
def test_of_few_trajectories_it_judges_what_is_there(failures: int, total: int, too_many: bool) -> None:
    ledger = FailureLedger(0.1)
    for number in range(total):
        ledger.note(FAILED if number < failures else WELL)
    assert not stops(ledger)
    assert bool(stops(ledger, few=True)) == too_many
