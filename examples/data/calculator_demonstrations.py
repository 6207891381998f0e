"""Write a few demonstrations of sums: short ones mostly from the head, long ones with the calculator."""

import argparse
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from agentverl.data.files import read_rows
from agentverl.errors import BadInputError
from agentverl.messages import Message
from agentverl.tools.calculator import Calculator
from agentverl.tools.toolset import ToolSpec

SHARE_OF_CALLS = {2: 0.05, 3: 0.1, 4: 0.3}
"""By the number of terms, as of a person who is good at sums; longer ones are always typed into the calculator."""

EXAMPLE = """\
example, after examples/data/reasoning_gym_tasks.py:
  python examples/data/calculator_demonstrations.py data/sums/train.parquet data/sums/demonstrations.jsonl
"""


def demonstrations(tasks: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Rows with `messages` and `tools` about the first `count` chain_sum tasks of a file.

    Raises:
        BadInputError: the file does not exist or holds too few such tasks.
    """
    random = Random(seed)
    tools = [ToolSpec.of(Calculator).schema]
    sums = [row for rows in read_rows(tasks) for row in rows if row["data_source"] == "reasoning_gym/chain_sum"]
    if len(sums) < count:
        raise BadInputError(f"{tasks} holds {len(sums)} tasks of chain_sum; expected at least {count}")
    return [{"messages": [*row["prompt"], *_reply(row, random)], "tools": tools} for row in sums[:count]]


def _reply(row: dict[str, Any], random: Random) -> list[Message]:
    about = json.loads(row["extra_info"]["entry"])["metadata"]
    result = row["reward_model"]["ground_truth"]
    answer: Message = {"role": "assistant", "content": f"The answer is {result}."}
    if random.random() >= SHARE_OF_CALLS.get(about["num_terms"], 1.0):
        return [answer]
    function = {"name": Calculator.name, "arguments": json.dumps({"expression": about["expression"]})}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return [call, {"role": "tool", "content": result}, answer]


def main() -> None:
    """Write the file named on the command line, one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", type=Path, help="train tasks, as reasoning_gym_tasks.py writes them")
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=384)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        rows = demonstrations(arguments.tasks, arguments.count, arguments.seed)
    except BadInputError as error:
        sys.exit(f"error: {error}")
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    with arguments.file.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
