"""CPU time of our own code per turn of an agent, against verl 0.9.1's ToolAgentLoop; the last line is JSON.

Usage: python benchmarks/agent_loop.py [--rounds 5]

8 samples of each of 32 prompts, 3 turns each, against a server that answers at once: two calls of a tool, then an
answer, from the prompt to the batch. Both sides are processes on one thread that work in turns; a case is the ratio of
the medians. The first time, verl is installed without its dependencies in an environment of its own (.venvs/verl).
"""

import argparse
import sys
import tempfile
from pathlib import Path

from comparison import Case, Side, report
from peers import verl_python
from tiny_model import build

SIDES = Path(__file__).parent / "sides"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        model = str(build(Path(folder) / "model"))
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
    report([Case.of_costs("tool_agent, 3 turns", *milliseconds, "CPU ms per turn", 3.0)])


if __name__ == "__main__":
    main()
