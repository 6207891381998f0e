"""Rollouts beside rewards that block, and a judge's limit of requests used up; the last line is JSON.

Usage: python benchmarks/rewards.py [--cases blocking_thread,blocking_loop,limited_judge] [--turns 5] [--seconds 70]

- `blocking_thread`: 16 trajectories at a time, each 200 ms at a stand-in for a server, judged by a function of which
  one call in ten blocks for 200 ms; trajectories a second over those of the same load with one that never does.
- `blocking_loop`: the same with an asynchronous function, which blocks the event loop that it runs on.
- `limited_judge`: a judge that answers at most 600 requests in any minute and refuses more, asked without end; answers
  a minute over 600. One refusal makes it 0.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from comparison import Case, report

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.hermes import HermesToolParser
from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.rewards.base import RewardInput
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.rollouts import Rollouts
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.settings.reward import RewardSettings
from agentverl.trajectory import TokenOutput

SIDES = Path(__file__).parent / "sides"
SAMPLES = 8
REQUESTS_A_MINUTE = 600
AT_ONCE = 16
SECONDS_A_REQUEST = 0.2
ASKERS = 64


class Server:
    """Not a model: answers every request with the same tokens after a while, so that only rewards differ."""

    weight_version = 0

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    async def open(self, request_id: str) -> None:
        pass

    async def close(self, request_id: str) -> None:
        pass

    async def generate(self, request_id: str, **_: Any) -> TokenOutput:
        await asyncio.sleep(SECONDS_A_REQUEST)
        return TokenOutput(list(self._ids), [-0.5] * len(self._ids), "completed", [(len(self._ids), 0)])


@contextmanager
def playing(function: str) -> Iterator[Callable[[int], float]]:
    """Rollouts with one reward function; what is yielded plays so many prompts and gives the seconds."""
    custom = {"path": str(SIDES / "blocking_reward.py"), "name": function}
    reward = NaiveRewardManager(RewardSettings.model_validate({"custom_reward_function": custom}))
    template = ChatTemplate(load_tokenizer(resolve_model_path("nano").path))
    parts = EpisodeParts(template=template, parser=HermesToolParser(), reward=reward)
    runner = EpisodeRunner(RunnerSettings(limits=ChatLimits(max_response_length=64), has_custom_reward=True), parts)
    server: Any = Server(template.assistant_ids({"role": "assistant", "content": "Answer: 42"}))
    settings = RolloutsSettings(max_concurrent_trajectories=AT_ONCE)
    numbers = itertools.count()
    with Rollouts(runner, LeastLoadedRouter([server]), settings, judging=runner.defer_judging()) as rollouts:

        def play(prompts: int) -> float:
            prompt = [{"role": "user", "content": "What is 6 * 7?"}]
            rows = [{"uid": f"0-{next(numbers)}", "data_source": "d", "raw_prompt": prompt} for _ in range(prompts)]
            started = time.perf_counter()
            rollouts.submit(rows, SAMPLES)
            rollouts.next_groups(prompts)
            return time.perf_counter() - started

        try:
            yield play
        finally:
            rollouts.thread.run(runner.teardown())


def blocking(name: str, function: str, turns: int, prompts: int) -> Case:
    """Both sides in one process, in turn; medians."""
    seconds: dict[str, list[float]] = {"free": [], function: []}
    with ExitStack() as stack:
        sides = {side: stack.enter_context(playing(side)) for side in seconds}
        for play in sides.values():
            play(max(1, prompts // 8))
        for _ in range(turns):
            for side, play in sides.items():
                seconds[side].append(play(prompts))
    count = prompts * SAMPLES
    ours, other = (count / statistics.median(seconds[side]) for side in (function, "free"))
    return Case.of_rates(name, ours, other, "trajectories/s", 0.9)


def limited_judge(seconds: float) -> Case:
    """Answers a minute of a judge that a manager asks as fast as it may."""
    command = [sys.executable, str(SIDES / "limited_judge.py"), str(REQUESTS_A_MINUTE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            took = asyncio.run(_ask(url, seconds))
            with urllib.request.urlopen(f"{url}/counts") as answer:
                counts: dict[str, int] = json.load(answer)
        finally:
            process.kill()
    print(f"limited_judge: {counts['answered']} answered, {counts['refused']} refused in {took:.1f} s")  # noqa: T201
    a_minute = 0.0 if counts["refused"] else counts["answered"] * 60.0 / took
    return Case.of_rates("limited_judge", a_minute, REQUESTS_A_MINUTE, "requests/min", 0.95)


async def _ask(url: str, seconds: float) -> float:
    settings: dict[str, Any] = {"base_url": f"{url}/v1", "model": "m", "max_rpm": REQUESTS_A_MINUTE, "max_retries": 0}
    entry = {"name": "judge", "kind": "judge", "settings": settings}
    manager = NaiveRewardManager(RewardSettings.model_validate({"components": [entry]}))
    numbers = itertools.count()
    await manager.score(_answer(next(numbers)))  # imports and connects
    started = time.monotonic()

    async def work() -> None:
        while time.monotonic() - started < seconds:
            await manager.score(_answer(next(numbers)))

    workers = [asyncio.ensure_future(work()) for _ in range(ASKERS)]
    await asyncio.gather(*workers)
    took = time.monotonic() - started
    await manager.close()
    return took


def _answer(number: int) -> RewardInput:
    text = f"Answer: {number}"
    return RewardInput(data_source="d", solution_str=text, final_message=text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="blocking_thread,blocking_loop,limited_judge", help="which, by commas")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side")
    parser.add_argument("--prompts", type=int, default=64, help="prompts a turn")
    parser.add_argument("--seconds", type=float, default=70.0, help="for which the judge is asked")
    arguments = parser.parse_args()
    cases: dict[str, Callable[[], Case]] = {
        "blocking_thread": lambda: blocking("blocking_thread", "blocks", arguments.turns, arguments.prompts),
        "blocking_loop": lambda: blocking("blocking_loop", "blocks_loop", arguments.turns, arguments.prompts),
        "limited_judge": lambda: limited_judge(arguments.seconds),
    }
    chosen = arguments.cases.split(",")
    if not set(chosen) <= cases.keys():
        parser.error(f"--cases={arguments.cases}: expected some of {','.join(cases)}")
    report([cases[name]() for name in chosen])


if __name__ == "__main__":
    main()
