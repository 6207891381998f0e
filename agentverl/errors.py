"""One tree of errors.

AgentverlError
├── BadInputError            what the user gave cannot work (exit code 2)
│   ├── SettingsError        a key or value of the configuration
│   ├── PluginError          a plugin that is not found, does not import or breaks its contract
│   ├── DatasetError         a data file, column or row
│   ├── ModelFolderError     a model folder, tokenizer or chat template
│   └── RunFolderError       the folder that a run writes to or resumes from
├── TrainingStoppedError     a run that cannot go on (exit code 1)
├── RequeueError             ended by SIGTERM after saving; start it again (exit code 75)
├── ToolError                raised by a tool to tell the model something; an answer, not a failure
└── BoundaryError            what went wrong at one boundary of an episode
    ├── InfrastructureError  can happen without the policy's doing: retried, then the trajectory is failed
    └── DeadlineError        the boundary did not answer in time
"""

from typing import Literal

Boundary = Literal["model", "tool", "environment", "sandbox", "reward", "agent"]


class AgentverlError(Exception):
    """Base of all errors of agentverl; `exit_code` is what the command line ends with."""

    exit_code = 1


class BadInputError(AgentverlError, ValueError):
    """What the user gave cannot work; the message says what came, what was expected and what would work."""

    exit_code = 2


class SettingsError(BadInputError):
    """A key or a value of the configuration is wrong."""


class PluginError(BadInputError):
    """A plugin is not found, does not import, or does not keep its contract."""


class DatasetError(BadInputError):
    """A data file, one of its columns or rows is missing or wrong."""


class ModelFolderError(BadInputError):
    """A model folder, its tokenizer or its chat template is missing or cannot be used."""


class RunFolderError(BadInputError):
    """The folder of a run cannot be written, or belongs to another configuration."""


class TrainingStoppedError(AgentverlError):
    """A run cannot go on; the message holds the reason and the remedy."""


class RequeueError(AgentverlError):
    """A run was ended by SIGTERM after saving; starting it again resumes."""

    exit_code = 75


class ToolError(AgentverlError):
    """Raised by a tool: the text is shown to the model as the tool's answer."""


class BoundaryError(AgentverlError):
    """A failure at one boundary of an episode."""

    def __init__(self, message: str, boundary: Boundary) -> None:
        super().__init__(message)
        self.boundary: Boundary = boundary

    def __reduce__(self) -> tuple[type["BoundaryError"], tuple[str, Boundary]]:
        return type(self), (str(self), self.boundary)


class InfrastructureError(BoundaryError):
    """A failure that the policy's own bytes did not cause; retried up to a bound, then the trajectory is failed."""


class DeadlineError(BoundaryError):
    """A boundary did not answer before its deadline."""
