"""What the plugins of a trajectory may use of it."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from agentverl.deadlines import Deadline
from agentverl.sandboxes.base import Sandbox


@dataclass(slots=True, kw_only=True)
class PluginContext:
    """What a tool or an environment may use of its trajectory; `random` is seeded by the trajectory."""

    sandbox: Sandbox | None = None
    row: dict[str, Any] = field(default_factory=dict)
    trajectory_id: str = ""
    deadline: Deadline = field(default_factory=Deadline)
    seed: int | None = None
    _random: Random | None = field(init=False, default=None)

    @property
    def random(self) -> Random:
        """Random numbers of this trajectory alone."""
        if self._random is None:  # its state takes 3 kB
            self._random = Random(self.seed)
        return self._random
