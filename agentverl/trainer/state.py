"""What a trainer has to remember between steps, as it stands in a checkpoint."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentverl.errors import RunFolderError
from agentverl.trainer.summary import ValidationPoint

_FILE = "trainer.json"


@dataclass(slots=True)
class TrainerState:
    """The steps done, where the prompts go on, what is under way, and what adapts or was measured on the way."""

    step: int = 0
    loader: dict[str, Any] = field(default_factory=dict)
    rollouts: dict[str, Any] = field(default_factory=dict)
    kl_coefficient: float | None = None
    validations: list[ValidationPoint] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step; a kill may come after the checkpoint and before they are logged."""
    wall_seconds: float = 0.0
    """Of the processes before this one."""

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint's folder."""
        (folder / _FILE).write_bytes(
            orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        )

    @classmethod
    def load(cls, folder: Path) -> "TrainerState":
        """Read what `save` wrote.

        Raises:
            RunFolderError: the file is missing or is not one of ours.
        """
        try:
            values = orjson.loads((folder / _FILE).read_bytes())
            values["metrics"] = {
                name: math.nan if value is None else value for name, value in values["metrics"].items()
            }
            values["validations"] = [ValidationPoint(**point) for point in values["validations"]]
            return cls(**values)
        except (OSError, orjson.JSONDecodeError, TypeError, KeyError) as error:
            raise RunFolderError(f"{folder} is no checkpoint of a run: {_FILE}: {error}") from error
