"""Deadlines that nest."""

import pytest

from agentverl.deadlines import Deadline


def test_what_is_left_is_the_smaller_of_both() -> None:
    assert Deadline().left_of(5.0) == 5.0
    assert Deadline.after(60.0).left_of(5.0) == 5.0
    assert Deadline.after(1.0).left_of(5.0) == pytest.approx(1.0, abs=0.1)
    assert Deadline.after(0.0).left_of(5.0) == 0.0
