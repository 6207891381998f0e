"""Scorers in processes that can be killed: a hang or a memory bomb costs one process, never the run."""

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from agentverl.errors import AgentverlError
from agentverl.rewards.worker import LENGTH

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "agentverl_minimum_score"
_LOADING_SECONDS = 120.0


class ScorerFailedError(AgentverlError):
    """A scorer raised, or its process ended by itself."""


class ScorerExhaustedError(AgentverlError):
    """A scorer ran out of time or memory and its process was replaced; `resource` is "time" or "memory"."""

    def __init__(self, resource: str) -> None:
        super().__init__(f"out of {resource}")
        self.resource = resource


def killable(*, minimum_score: float = 0.0) -> Callable[[_Function], _Function]:
    """Mark a synchronous scorer to run in a process of its own.

    An answer on which it twice runs out of time or memory scores `minimum_score`. The function must be importable by
    its name, and what it gets and returns must survive pickling.
    """

    def mark(function: _Function) -> _Function:
        setattr(function, _MARK, minimum_score)
        return function

    return mark


def minimum_score_of(function: Callable[..., Any]) -> float | None:
    """The minimum score of a killable scorer, None for any other function."""
    minimum: float | None = getattr(function, _MARK, None)
    return minimum


class _Worker:
    """One process, and which scorers it has imported."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.loaded: set[str] = set()

    @classmethod
    async def start(cls, memory_bytes: int) -> "_Worker":
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agentverl.rewards.worker",
            str(memory_bytes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        return cls(process)

    async def ask(self, target: str, arguments: dict[str, Any] | None, seconds: float) -> Any:
        """Send one request and await its reply; any error but ScorerFailedError leaves the process unusable."""
        requests = cast(asyncio.StreamWriter, self.process.stdin)
        replies = cast(asyncio.StreamReader, self.process.stdout)
        body = pickle.dumps({"target": target, "arguments": arguments, "seconds": seconds})
        try:
            async with asyncio.timeout(seconds):
                requests.write(LENGTH.pack(len(body)) + body)
                await requests.drain()
                (length,) = LENGTH.unpack(await replies.readexactly(LENGTH.size))
                kind, value = pickle.loads(await replies.readexactly(length))
        except TimeoutError:
            raise ScorerExhaustedError("time") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise self._ended(await self.process.wait()) from None
        if kind == "memory":
            raise ScorerExhaustedError("memory")
        if kind == "error":
            raise ScorerFailedError(value)
        return value

    @staticmethod
    def _ended(exit_code: int) -> AgentverlError:
        if exit_code == -signal.SIGALRM:
            return ScorerExhaustedError("time")
        if exit_code == -signal.SIGKILL:  # the kernel's, when memory runs out: ours comes only after a deadline
            return ScorerExhaustedError("memory")
        return ScorerFailedError(f"its process ended with exit code {exit_code}")

    @property
    def lives(self) -> bool:
        """Asked of the kernel: the event loop hears of a death a little later."""
        if self.process.returncode is not None:
            return False
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # it has been waited for
            return False

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class ProcessPool:
    """At most `num_workers` processes, started when needed; belongs to the event loop that first uses it."""

    def __init__(self, num_workers: int = 2, *, memory_bytes: int = 2 << 30) -> None:
        self._memory_bytes = memory_bytes
        self._free = asyncio.Semaphore(num_workers)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

    async def call(self, target: str, arguments: dict[str, Any], *, timeout_seconds: float) -> Any:
        """Run the scorer named `target` (`module:function` or `file.py:function`) in a process.

        Waiting for a free process and importing the scorer do not count against `timeout_seconds`.

        Raises:
            ScorerExhaustedError: it ran out of time or memory.
            ScorerFailedError: it raised, does not import, or took its process with it.
        """
        async with self._free:
            worker = self._take_idle() or await _Worker.start(self._memory_bytes)
            self._busy.add(worker)
            usable = False
            try:
                if target not in worker.loaded:
                    await worker.ask(target, None, _LOADING_SECONDS)
                    worker.loaded.add(target)
                result = await worker.ask(target, arguments, timeout_seconds)
                usable = True
                return result
            except ScorerFailedError:
                usable = worker.process.returncode is None
                raise
            finally:
                self._busy.discard(worker)
                if usable:
                    self._idle.append(worker)
                else:
                    await asyncio.shield(worker.stop())

    def _take_idle(self) -> _Worker | None:
        """One that still lives: the kernel or a person may have killed it while it waited, no answer's fault."""
        while self._idle:
            worker = self._idle.pop()
            if worker.lives:
                return worker
        return None

    async def close(self) -> None:
        """Stop all processes."""
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        await asyncio.gather(*(worker.stop() for worker in workers))
