"""Rollouts beside rewards that block, and a judge's limit of requests used up; the last line is JSON.

Usage: python benchmarks/rewards.py [--cases blocking_thread,blocking_loop,limited_judge] [--turns 5] [--seconds 70]

- `blocking_thread`: the nano model plays the calculator tasks, 8 samples of each prompt, judged by a function of which
  one call in ten blocks for 200 ms; trajectories a second over those of the same load with a function that never does.
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
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from comparison import Case, report

from agentverl.rewards.base import RewardInput
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.settings.compose import compose
from agentverl.settings.reward import RewardSettings
from agentverl.trainer.preparation import prepare
from agentverl.trainer.session import Session

SIDES = Path(__file__).parent / "sides"
SAMPLES = 8
REQUESTS_A_MINUTE = 600
AT_ONCE = 64


@contextmanager
def rollouts(function: str) -> Iterator[Callable[[int], float]]:
    """A server and its rollouts with one reward function; what is yielded plays that many prompts and times it."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"reward.custom_reward_function.path={SIDES / 'blocking_reward.py'}"]
        words += [f"reward.custom_reward_function.name={function}", "reward.num_workers=8"]
        words += [f"trainer.default_local_dir={folder}/run"]
        settings = compose(None, [*words, "trainer.logger=[file]"])
        prepared = prepare(settings, splits=("train",))
        session = Session(settings, prepared, Path(folder) / "run")
        numbers = itertools.count()

        def play(prompts: int) -> float:
            rows = [{**row, "uid": f"0-{next(numbers)}"} for row in itertools.islice(prepared.train_rows, prompts)]
            started = time.perf_counter()
            session.rollouts.submit(rows, SAMPLES)
            session.rollouts.next_groups(prompts)
            return time.perf_counter() - started

        try:
            yield play
        finally:
            session.close()


def blocking(name: str, function: str, turns: int, prompts: int) -> Case:
    """Both sides in one process, in turn; medians."""
    seconds: dict[str, list[float]] = {"free": [], function: []}
    with ExitStack() as stack:
        sides = {side: stack.enter_context(rollouts(side)) for side in seconds}
        for play in sides.values():
            play(max(1, prompts // 4))
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

    workers = [asyncio.ensure_future(work()) for _ in range(AT_ONCE)]
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
