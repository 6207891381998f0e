"""Reward functions called where they can hold up nobody: on loops, in threads, or in processes that can be killed."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from agentverl import blocking, plugins
from agentverl.deadlines import Deadline, OutOfTimeError, bounded
from agentverl.errors import BoundaryError, DeadlineError
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.process_pool import ProcessPool, ScorerExhaustedError
from agentverl.rewards.scorer import Scorer, as_result
from agentverl.rewards.scoring_loops import ScoringLoops
from agentverl.settings.reward import RewardSettings


class FunctionCalls:
    """What a manager's reward functions share.

    Asynchronous functions run on loops of their own, synchronous ones in a thread each, those marked `@killable` in a
    process; with `in_processes` all synchronous ones do.
    """

    def __init__(self, settings: RewardSettings, *, in_processes: bool = False) -> None:
        self._timeout_seconds = settings.timeout_seconds
        self._pool = ProcessPool(settings.num_workers, memory_bytes=settings.memory_bytes)
        self._loops = ScoringLoops(settings.num_workers)
        self._in_processes = in_processes
        self._places: dict[Callable[..., Any], asyncio.Semaphore] = {}

    async def score(self, scorer: Scorer, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        """The score of one trajectory by one function, and the seconds it took.

        Raises:
            DeadlineError: a function that cannot be killed did not answer in time.
            BoundaryError: the function raised, or returned no finite number; boundary "reward" with the reason.
        """
        started = time.perf_counter()
        value = await self.call(scorer, scorer.arguments(judged), deadline)
        result = read(value, scorer.target)
        result.seconds = time.perf_counter() - started
        return result

    async def call(self, scorer: Scorer, arguments: dict[str, Any], deadline: Deadline | None = None) -> Any:
        """What the function returns; a RewardResult of its minimum for an answer that exhausts it.

        Waiting for a place, where the function says how many calls run at a time, counts against no deadline.

        Raises:
            DeadlineError, BoundaryError: as `score`.
        """
        async with self._place(scorer):
            return await self._call(scorer, arguments, deadline)

    def _place(self, scorer: Scorer) -> AbstractAsyncContextManager[Any]:
        if scorer.most_at_once is None:
            return nullcontext()
        return self._places.setdefault(scorer.function, asyncio.Semaphore(scorer.most_at_once))

    async def _call(self, scorer: Scorer, arguments: dict[str, Any], deadline: Deadline | None) -> Any:
        seconds = (deadline or Deadline()).left_of(self._timeout_seconds)
        try:
            if blocking.inline:
                value = scorer.function(**arguments)
                return await value if hasattr(value, "__await__") else value
            if scorer.minimum_score is not None or (self._in_processes and not scorer.is_async):
                return await self._in_process(scorer, arguments, seconds)
            return await bounded(self._in_thread(scorer, arguments), seconds)
        except OutOfTimeError as error:
            raise DeadlineError(f"reward function {scorer.target}: {error}", "reward") from None
        except BoundaryError:
            raise
        except Exception as error:  # a reward function may raise anything; its reason is what the user needs
            reason = f"{type(error).__name__}: {error}{plugins.line_of(error)}"
            raise BoundaryError(f"reward function {scorer.target} failed: {reason}", "reward") from error

    async def close(self) -> None:
        """Stop processes and loops."""
        await self._pool.close()
        await blocking.call(self._loops.close)

    async def _in_thread(self, scorer: Scorer, arguments: dict[str, Any]) -> Any:
        if scorer.is_async:
            return await self._loops.call(scorer.function, arguments)
        value = await blocking.call(scorer.function, **arguments)
        return await value if hasattr(value, "__await__") else value

    async def _in_process(self, scorer: Scorer, arguments: dict[str, Any], seconds: float) -> Any:
        exhausted = ""
        for _ in range(2):
            try:
                return await self._pool.call(scorer.target, arguments, timeout_seconds=seconds)
            except ScorerExhaustedError as error:
                exhausted = error.resource
        minimum = scorer.minimum_score or 0.0
        return RewardResult(score=minimum, components={f"scorer_out_of_{exhausted}": 1.0})


def read(value: Any, target: str) -> RewardResult:
    """What came of a call, as a result.

    Raises:
        BoundaryError: it is neither a finite number nor a mapping with one under `score`; boundary "reward".
    """
    try:
        return value if isinstance(value, RewardResult) else as_result(value, target)
    except ValueError as error:
        raise BoundaryError(f"reward function {target} failed: {error}", "reward") from error
