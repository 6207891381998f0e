"""How idle two rollout servers are under a long-tailed load, against a perfect schedule; the last line is JSON.

Usage: python benchmarks/rollout_idle.py [--rounds 3] [--trajectories 256] [--slots 16]

Each server answers `slots` requests at a time and queues the others; it is a fake that sleeps for as long as the tokens
of an answer would take. Trajectories have three turns, whose lengths are drawn from a log-normal distribution.
Rollouts, router, runner and chat are the real ones. A perfect schedule knows all lengths: it takes as long as the
longest trajectory, or as all tokens on all slots, whichever is more. One that knows none takes at
most twice as long (Graham, 1966); required is 1.5.

- `time`: of the whole rollout, over that of the perfect schedule;
- `busy slots`: the share of slot time in which tokens are made, ours and the perfect schedule's; idle is the rest.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import Case, report
from tiny_model import build

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.hermes import HermesToolParser
from agentverl.data.tokenizers import load_tokenizer
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.tools.loading import load_tools
from agentverl.tools.toolset import Toolset
from agentverl.trajectory import TokenOutput

SERVERS, TURNS = 2, 3
TOKEN_SECONDS = 0.001
MEDIAN_TOKENS, SPREAD = 120.0, 0.9
SLOWEST = 1.5
"""Times the perfect schedule that a rollout may take."""
TOOL_FILE = Path(__file__).parent / "sides" / "agent_tool.py"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def lengths(trajectory_id: str) -> list[int]:
    """Tokens of each turn of a trajectory."""
    chance = random.Random(trajectory_id)
    return [max(1, round(MEDIAN_TOKENS * chance.lognormvariate(0, SPREAD))) for _ in range(TURNS)]


class Server:
    """A fake: a queue, slots, and time that passes with tokens."""

    weight_version = 0

    def __init__(self, slots: int, replies: list[list[int]]) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._replies = replies
        self._turns: Counter[str] = Counter()

    async def open(self, request_id: str) -> None:
        pass

    async def close(self, request_id: str) -> None:
        pass

    async def generate(self, request_id: str, **_: Any) -> TokenOutput:
        turn = self._turns[request_id]
        self._turns[request_id] += 1
        async with self._slots:
            await asyncio.sleep(lengths(request_id)[turn] * TOKEN_SECONDS)
        ids = self._replies[turn]
        return TokenOutput(list(ids), [-0.5] * len(ids), "completed", [(len(ids), 0)])


@dataclass(frozen=True, slots=True)
class Schedule:
    """Of all trajectories of a round."""

    seconds: float
    busy: float
    """The share of slot time in which tokens are made."""


def perfect(ids: list[str], slots: int) -> Schedule:
    """What no schedule can beat."""
    tokens = [sum(lengths(one)) for one in ids]
    seconds = max(*tokens, sum(tokens) / (SERVERS * slots)) * TOKEN_SECONDS
    return Schedule(seconds, sum(tokens) * TOKEN_SECONDS / (SERVERS * slots * seconds))


def play(model: str, rows: list[dict[str, Any]], slots: int) -> Schedule:
    """One round of rollouts."""
    tokenizer = load_tokenizer(model)
    replies = [
        [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        for text in (*[CALL] * (TURNS - 1), "It is five.")
    ]
    parts = EpisodeParts(
        template=ChatTemplate(tokenizer),
        parser=HermesToolParser(),
        toolset=Toolset(load_tools(function_tool_path=TOOL_FILE)),
    )
    limits = ChatLimits(max_response_length=2048)
    runner = EpisodeRunner(RunnerSettings(limits=limits, default_agent_loop="tool_agent"), parts)
    router = LeastLoadedRouter([Server(slots, replies) for _ in range(SERVERS)])
    with Rollouts(runner, router, RolloutsSettings(max_concurrent_trajectories=SERVERS * slots)) as rollouts:
        started = time.perf_counter()
        rollouts.submit(rows, 1)
        rollouts.next_groups(len(rows))
        seconds = time.perf_counter() - started
    tokens = sum(sum(lengths(f"{row['uid']}/0")) for row in rows)
    return Schedule(seconds, tokens * TOKEN_SECONDS / (SERVERS * slots * seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="with other lengths each")
    parser.add_argument("--trajectories", type=int, default=256)
    parser.add_argument("--slots", type=int, default=16, help="requests that a server answers at a time")
    asked = parser.parse_args()
    ours, theirs = [], []
    question = [{"role": "user", "content": "What is 2 + 3? Call the tool twice."}]
    with tempfile.TemporaryDirectory() as folder:
        model = str(build(Path(folder) / "model"))
        for number in range(asked.rounds):
            rows = [{"uid": f"{number}-{index}", "raw_prompt": question} for index in range(asked.trajectories)]
            ours.append(play(model, rows, asked.slots))
            theirs.append(perfect([f"{row['uid']}/0" for row in rows], asked.slots))
    seconds = [statistics.median(one.seconds for one in side) for side in (ours, theirs)]
    busy = [statistics.median(one.busy for one in side) for side in (ours, theirs)]
    report(
        [
            Case.of_costs("time", *seconds, "s", 1 / SLOWEST),
            Case.of_rates("busy slots", *busy, "share of slot time", 1 / SLOWEST),
        ]
    )


if __name__ == "__main__":
    main()
