"""What a sandbox is: the place where model-written code runs, one a trajectory."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a command ended. Running out of time or memory is an answer for the model, not a failure of the sandbox."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    killed_by_memory: bool = False


class Sandbox(ABC):
    """A leased sandbox; loop, tools and environment of a trajectory share it.

    Subclass to run commands somewhere else. What can go wrong without the policy's doing (the place is gone, it cannot
    be created) is raised as an InfrastructureError with boundary "sandbox"; anything else is an ExecResult.
    """

    python: str = "python3"
    """The command of the Python interpreter inside."""

    @abstractmethod
    async def exec(self, command: str, *, timeout_seconds: float, stdin: str | None = None) -> ExecResult:
        """Run a shell command to its end, or to its timeout."""

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """The bytes of a file; FileNotFoundError where there is none."""

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file, making its folders; an old one is replaced."""

    @abstractmethod
    async def snapshot(self) -> str:
        """A key of the present state of the files, from which a sandbox can be started again."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all that runs in it and give its resources back; a second call does nothing."""
