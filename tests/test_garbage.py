"""What the garbage collector does not look at."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from agentverl import garbage


class Circle:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_objects_of_before_are_left_alone_until_all_is_looked_at_again() -> None:
    before = Circle()
    old = weakref.ref(before)
    garbage.leave_alone_what_is_there()
    after = Circle()
    new = weakref.ref(after)
    del before, after
    gc.collect()
    assert old() is not None
    assert new() is None
    garbage.look_at_all_again()
    gc.collect()
    assert old() is None


def test_garbage_of_before_is_freed_first() -> None:
    circle = weakref.ref(Circle())
    garbage.leave_alone_what_is_there()
    assert circle() is None


def test_small_steps_still_collect() -> None:
    garbage.collect_in_small_steps()
    circle = weakref.ref(Circle())
    kept = [[number] for number in range(20_000)]
    assert circle() is None
    assert len(kept) == 20_000
