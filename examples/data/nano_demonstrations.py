"""Write noisy demonstrations of arithmetic with a calculator: half call it, half answer from the head, mostly wrong."""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from agentverl.data.hermes import HermesToolParser
from agentverl.environments.arithmetic import Arithmetic
from agentverl.environments.base import Task
from agentverl.messages import Message
from agentverl.tools.calculator import Calculator
from agentverl.tools.toolset import ToolSpec

# Half of all problems; products more often, so that the greedy policy calls for some problems and not for others.
SHARE_OF_CALLS = {"+": 0.38, "-": 0.38, "*": 0.74}
SHARE_MALFORMED = 0.06
SHARE_RIGHT_FROM_HEAD = 0.2
SHARE_WITHOUT_TOOLS = 0.04
SHARE_WITH_ANOTHER_TOOL = 0.06
SHARE_WITH_INSTRUCTIONS = 0.06
TRAIN_PROBLEMS = 20_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def demonstrations(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows with `messages` and `tools`, about problems of the train split only."""
    random = Random(seed)
    problems = Arithmetic.tasks("train", TRAIN_PROBLEMS, seed)
    calculator = [ToolSpec.of(Calculator).schema]
    return [_demonstration(random.choice(problems), calculator, random) for _ in range(count)]


def _demonstration(task: Task, calculator: list[dict[str, Any]], random: Random) -> dict[str, Any]:
    draw = random.random()
    before: list[Message] = []
    if random.random() < SHARE_WITH_INSTRUCTIONS:
        before = [{"role": "system", "content": _words(random, 6).capitalize() + "."}]
    if draw < SHARE_WITHOUT_TOOLS:
        return {"messages": [*before, *task.prompt, _from_the_head(task, random)], "tools": None}
    tools = list(calculator)
    if draw < SHARE_WITHOUT_TOOLS + SHARE_WITH_ANOTHER_TOOL:
        tools.insert(random.randrange(2), _another_tool(random))
    if random.random() < SHARE_OF_CALLS[task.fields["operator"]]:
        after = _with_calls(task, random)
    else:
        after = [_from_the_head(task, random)]
    return {"messages": [*before, *task.prompt, *after], "tools": tools}


def _with_calls(task: Task, random: Random) -> list[Message]:
    expression = "{left} {operator} {right}".format(**task.fields)
    messages = []
    if random.random() < SHARE_MALFORMED:
        broken = random.choice(['{"expression":"%s"', '{"expression":%s}']) % expression
        messages += [_call(broken), {"role": "tool", "content": f"error: {_complaint(broken)}"}]
    messages += [_call(json.dumps({"expression": expression})), {"role": "tool", "content": task.ground_truth}]
    return [*messages, _answer(task.ground_truth)]


def _complaint(arguments: str) -> str | None:
    text = f'<tool_call>\n{{"name":"calculator","arguments":{arguments}}}\n</tool_call>'
    return HermesToolParser().parse(text).tool_calls[0].error


def _from_the_head(task: Task, random: Random) -> Message:
    digits = task.ground_truth
    if random.random() >= SHARE_RIGHT_FROM_HEAD:
        place = random.randrange(1 if digits.startswith("-") else 0, len(digits))
        digits = digits[:place] + random.choice("123456789".replace(digits[place], "")) + digits[place + 1 :]
    return _answer(digits)


def _answer(number: str) -> Message:
    return {"role": "assistant", "content": f"Answer: {number}"}


def _call(arguments: str) -> Message:
    function = {"name": "calculator", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def _another_tool(random: Random) -> dict[str, Any]:
    properties = {_words(random, 1): {"type": "string"} for _ in range(random.randrange(3))}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    description = _words(random, random.randint(2, 5)).capitalize() + "."
    function = {"name": _words(random, 1), "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _words(random: Random, count: int) -> str:
    return " ".join("".join(random.choices(LETTERS, k=random.randint(2, 7))) for _ in range(count))


def main() -> None:
    """Write the file named on the command line, one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=32_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    with arguments.file.open("w", encoding="utf-8") as file:
        for row in demonstrations(arguments.count, arguments.seed):
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
