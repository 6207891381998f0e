"""A server that takes no time, in each runner's own process; it measures that process while it is asked."""

import asyncio
import os
import time
from collections import Counter
from typing import Any

import library_time
import psutil
from agent_script import TOOL_FILE

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.hermes import HermesToolParser
from agentverl.data.tokenizers import load_tokenizer
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.runner_worker import RunnerWorker
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.tools.loading import load_tools
from agentverl.tools.toolset import Toolset
from agentverl.trajectory import TokenOutput

_TURNS: Counter[str] = Counter()
_LAGS: list[float] = []
_WAITING: set[str] = set()
_hold = asyncio.Event()
_watching: list[asyncio.Future[None]] = []


class Server:
    """Answers at once; it is copied into every process that it is sent to.

    Args:
        replies: token ids, a turn each.
        holds: the turn, counted from 0, before which all trajectories wait for `let_go`; -1 for none.
    """

    weight_version = 0

    def __init__(self, replies: list[list[int]], holds: int = -1) -> None:
        self._replies = replies
        self._holds = holds

    async def open(self, request_id: str) -> None:
        pass

    async def close(self, request_id: str) -> None:
        pass

    async def health(self) -> dict[str, Any]:
        return {"weight_version": 0}

    async def generate(self, request_id: str, **_: Any) -> TokenOutput:
        turn = _TURNS[request_id]
        ids = self._replies[turn]
        _TURNS[request_id] += 1
        if turn == self._holds:
            _WAITING.add(request_id)
            await _hold.wait()
            _WAITING.discard(request_id)
        return TokenOutput(list(ids), [-0.5] * len(ids), "completed", [(len(ids), 0)])


class Gauge:
    """What a runner's process can say of itself."""

    async def begin(self) -> None:
        """Measure, from now on, how late the event loop is."""
        _TURNS.clear()
        _LAGS.clear()
        _hold.clear()
        if not _watching:
            _watching.append(asyncio.ensure_future(_watch()))

    async def read(self) -> dict[str, Any]:
        """CPU seconds so far, of all and of our own code on the event loop; memory, and how late the loop was."""
        return {
            "cpu_seconds": time.process_time(),
            "own_seconds": time.thread_time() - library_time.seconds(),
            "memory_bytes": psutil.Process(os.getpid()).memory_full_info().uss,
            "lags": list(_LAGS),
        }

    async def waiting(self) -> int:
        """Trajectories that wait in this process."""
        return len(_WAITING)

    async def let_go(self) -> None:
        """Answer those that wait."""
        _hold.set()


async def _watch() -> None:
    while True:
        due = time.perf_counter() + 0.005
        await asyncio.sleep(0.005)
        _LAGS.append(time.perf_counter() - due)


class MeasuredRunner(RunnerWorker):
    """A runner whose process can be measured."""

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def gauge(self) -> Gauge:
        """Measures this process."""
        return Gauge()


def make_runner(model: str, rank: int) -> EpisodeRunner:
    """tool_agent with the benchmark's tool."""
    library_time.begin()
    parts = EpisodeParts(
        template=ChatTemplate(load_tokenizer(model)),
        parser=HermesToolParser(),
        toolset=Toolset(load_tools(function_tool_path=TOOL_FILE)),
    )
    limits = ChatLimits(max_response_length=2048)
    return EpisodeRunner(RunnerSettings(limits=limits, default_agent_loop="tool_agent"), parts)
