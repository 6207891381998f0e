"""CPU time of our own code per turn of an agent; the last line is JSON.

Usage: python benchmarks/agent_loop.py [--cases verl,distributed] [--rounds 5] [--trajectories 1000]

`verl`, against verl 0.9.1's ToolAgentLoop:
8 samples of each of 32 prompts, 3 turns each, against a server that answers at once: two calls of a tool, then an
answer, from the prompt to the batch. Both sides are processes on one thread that work in turns; a case is the ratio of
the medians. The first time, verl is installed without its dependencies in an environment of its own (.venvs/verl).

`distributed`, against fixed bounds: 1,000 concurrent trajectories of 5 turns, played by two runner processes in Ray.
The server stands in the runners' processes and answers at once. From the submission of rows to the last group, CPU time
of our own code is that of the event loops of runners and controller and of the controller's main thread, less what the
runners' loops spend in the tokenizer, in Jinja and in `ray.put`; asyncio, pydantic, numpy, torch and garbage collection
count as ours. That of whole processes has nothing taken off and is held against the same bound. Ray's daemons are other
processes.
The bound was set on a machine where verl's loop takes 1.4 ms a turn. Where `verl` is measured in the same run, whole
processes are also held against that: verl's turn over ours is at least 4.7, whatever the machine.
Lag is by how much a timer of 5 ms comes late; what other programs take from the cores counts as lag, so run it on a
quiet machine.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from comparison import Case, Side, report
from peers import verl_python
from tiny_model import build

SIDES = Path(__file__).parent / "sides"
_VERL, _WHOLE = "tool_agent, 3 turns", "distributed: runners and controller"
_VERL_MILLISECONDS, _BOUND_MILLISECONDS = 1.4, 0.3
"""A turn of verl's loop, and the bound, where that was set."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--cases", default="verl,distributed", help="which of the two")
    parser.add_argument("--trajectories", type=int, default=1000, help="of the distributed case")
    asked = parser.parse_args()
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as folder:
        model = str(build(Path(folder) / "model"))
        if "verl" in asked.cases:
            cases.append(verl_case(model, asked.rounds))
        if "distributed" in asked.cases:
            cases += distributed_cases(model, asked.trajectories, asked.rounds)
        if "verl" in asked.cases and "distributed" in asked.cases:
            cases.append(_whole_against_verl(cases))
    report(cases)


def distributed_cases(model: str, trajectories: int, rounds: int) -> list[Case]:
    """CPU a turn, how late the runners' event loops are, and the memory of a trajectory that waits."""
    side = Side(
        "runners", Path(sys.executable), SIDES / "distributed_agent_loop.py", model, str(trajectories), threads=1
    )
    side.turn(warm_up=True)
    for _ in range(rounds):
        side.turn()
    side.end()
    return [
        Case.of_costs(name, scale * side.median(key), bound, unit, 1.0)
        for name, key, scale, bound, unit in (
            ("distributed: our own code", "own_seconds", 1000, _BOUND_MILLISECONDS, "CPU ms per turn"),
            ("distributed: runners", "runner_seconds", 1000, _BOUND_MILLISECONDS, "CPU ms per turn"),
            (_WHOLE, "seconds", 1000, _BOUND_MILLISECONDS, "CPU ms per turn"),
            ("distributed: event loop lag, p99", "lag_seconds", 1000, 20.0, "ms"),
            ("distributed: a waiting trajectory beyond its tokens", "waiting_bytes", 0.001, 50.0, "kB"),
        )
    ]


def _whole_against_verl(cases: list[Case]) -> Case:
    """What a machine's speed does not change: a turn of whole processes against one of verl's loop."""
    by_name = {case.name: case for case in cases}
    required = round(_VERL_MILLISECONDS / _BOUND_MILLISECONDS, 1)
    verl, ours = by_name[_VERL].other, by_name[_WHOLE].ours
    return Case.of_costs(f"{_WHOLE}, against verl's turn", ours, verl, "CPU ms per turn", required)


def verl_case(model: str, rounds: int) -> Case:
    """CPU a turn, from the prompt to the batch."""
    ours = Side("agentverl", Path(sys.executable), SIDES / "own_agent_loop.py", model, threads=1)
    python = verl_python("verl.experimental.agent_loop.tool_agent_loop")
    verl = Side("verl", python, SIDES / "verl_agent_loop.py", model, threads=1)
    for side in (ours, verl):
        side.turn(warm_up=True)
    for _ in range(rounds):
        ours.turn()
        verl.turn()
    for side in (ours, verl):
        side.end()
    milliseconds = [1000 * side.median("seconds") for side in (ours, verl)]
    return Case.of_costs(_VERL, *milliseconds, "CPU ms per turn", 3.0)


if __name__ == "__main__":
    main()
