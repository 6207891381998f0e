"""The book of groups: each is handed out once, in the order of submission, whatever order its samples end in."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import BadInputError
from agentverl.rollout.episode import EpisodeResult
from agentverl.rollout.group_book import GroupBook
from agentverl.rollout.groups import GroupPolicy, OpenGroup
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.trajectory import Termination

SAMPLES = 2


def rows(*uids: str) -> list[dict[str, Any]]:
    return [{"uid": uid} for uid in uids]


def enter(book: GroupBook, *uids: str, validation: bool = False) -> list[OpenGroup]:
    return book.open(rows(*uids), SAMPLES, validation=validation, greedy=False, step=0)


def end(book: GroupBook, group: OpenGroup, *, fails: bool = False) -> None:
    ending = Termination.ERROR_SANDBOX if fails else Termination.ANSWERED
    book.note(group, EpisodeResult(episode=group.next_episode(), termination=ending))
    book.settle(group)


def take(book: GroupBook, count: int, *, validation: bool = False) -> list[str]:
    groups = book.wait_for(count, validation=validation, before_each_look=lambda: None)
    return [group.uid for group in book.hand_out(groups, count, validation=validation)]


@given(
    st.permutations([(number, sample) for number in range(6) for sample in range(SAMPLES)]), st.sets(st.integers(0, 5))
)
def test_the_order_is_that_of_submission_and_what_is_dropped_is_missing_once(
    endings: list[tuple[int, int]], dropped: set[int]
) -> None:
    drop = GroupPolicy(incomplete_groups="drop")
    book = GroupBook(RolloutsSettings(group_policy=drop, max_excluded_fraction=1.0))
    groups = enter(book, *"abcdef")
    for number, sample in endings:
        end(book, groups[number], fails=number in dropped and sample == 0)
    left = [uid for number, uid in enumerate("abcdef") if number not in dropped]
    if left:
        assert take(book, 6) == left
    with pytest.raises(BadInputError, match="only 0 groups" if left else "submit more"):
        take(book, 1 if left else 7)


def test_a_wait_for_some_hands_out_the_first_that_are_ready_and_keeps_the_others() -> None:
    book = GroupBook(RolloutsSettings())
    for group in reversed(enter(book, "a", "b", "c")[1:]):
        for _ in range(SAMPLES):
            end(book, group)
    assert take(book, 1) == ["b"]
    assert [group.uid for group in book.submitted()] == ["a", "c"]


def test_training_and_validation_are_apart() -> None:
    book = GroupBook(RolloutsSettings())
    training, validation = enter(book, "a"), enter(book, "a", validation=True)
    for group in [*training, *validation]:
        for _ in range(SAMPLES):
            end(book, group)
    assert take(book, 1, validation=True) == ["a"]
    assert [group.uid for group in book.submitted()] == ["a"]
    assert take(book, 1) == ["a"]


@pytest.mark.parametrize("second", ["b", "c"], ids=["of the same call", "under way"])
def test_a_refused_call_enters_none_of_its_rows(second: str) -> None:
    book = GroupBook(RolloutsSettings())
    enter(book, "c")
    with pytest.raises(BadInputError, match=f"uid '{second}' is already under way"):
        enter(book, "a", "b", second)
    assert [group.uid for group in book.submitted()] == ["c"]
    assert [group.uid for group in enter(book, "a", "b")] == ["a", "b"]


def test_what_is_played_again_is_sampled_as_before_for_the_step_that_asks() -> None:
    book = GroupBook(RolloutsSettings(sampling_params={"temperature": 1.0, "top_p": 0.9}))
    (greedy,) = book.open(rows("a"), SAMPLES, validation=False, greedy=True, step=1)
    (sampled,) = enter(book, "b")
    for group in (greedy, sampled):
        for _ in range(SAMPLES):
            end(book, group)
    assert book.replace_older_than(0, step=3) == []
    again = book.replace_older_than(1, step=3)
    assert [group.sampling_params for group in again] == [{"temperature": 0.0, "top_p": 0.9}, sampled.sampling_params]
    assert [(group.uid, group.step, group.started) for group in again] == [("a", 3, 0), ("b", 3, 0)]
    assert book.submitted() == again
