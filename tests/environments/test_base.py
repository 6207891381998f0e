"""What an environment leaves out says so when somebody asks for it all the same."""

import pytest

from agentverl.environments.base import Environment
from agentverl.messages import Message


class Silent(Environment):
    """A world that makes no tasks, answers nothing and judges nothing."""


async def test_what_is_not_written_says_what_would_work() -> None:
    with pytest.raises(NotImplementedError, match="Silent has no tasks of its own; give data files, or write it"):
        Silent.tasks("train", 1, 0)
    with pytest.raises(NotImplementedError, match="Silent has no step of its own; send actions only where steps"):
        await Silent().step(Message(role="assistant", content="go"))
    with pytest.raises(NotImplementedError, match="Silent has no score of its own; let a reward function judge"):
        await Silent().score()
    assert [Silent.makes_tasks(), Silent.steps(), Silent.scores()] == [False] * 3
