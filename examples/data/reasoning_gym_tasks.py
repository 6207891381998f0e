"""Write problems of reasoning_gym as train.parquet and test.parquet, in the columns that training reads."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentverl.environments.base import Task
from agentverl.environments.reasoning_gym import ReasoningGym
from agentverl.errors import BadInputError

EXAMPLE = """\
example, seven sums to one word problem:
  python examples/data/reasoning_gym_tasks.py data/sums --dataset chain_sum=7 --dataset gsm_symbolic=1 \\
      --set chain_sum.min_digits=2 --set chain_sum.max_digits=4 --train-size 4096 --test-size 128
"""


def problems(split: str, size: int, seed: int, datasets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`size` rows, no question twice; a question's own text decides its split ("train" or "val"), whatever the seed.

    Raises:
        SettingsError: a dataset or its configuration does not exist.
        BadInputError: the datasets do not hold so many different questions.
    """
    asked = size + size // 2 + 100
    unique = {task.fields["question"]: task for task in ReasoningGym.tasks(split, asked, seed, datasets=datasets)}
    if len(unique) < size:
        raise BadInputError(f"only {len(unique)} of {size} questions differ in split {split!r}; allow larger numbers")
    return [_row(task, split, index) for index, task in enumerate(list(unique.values())[:size])]


def _row(task: Task, split: str, index: int) -> dict[str, Any]:
    return {
        "prompt": task.prompt,
        "data_source": task.data_source,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": task.ground_truth},
        "extra_info": {"index": index, "split": split, "entry": task.fields["entry"]},
    }


def shares(weights: Sequence[str], settings: Sequence[str]) -> list[dict[str, Any]]:
    """What the environment calls `datasets`, from words such as `chain_sum=7` and `chain_sum.max_terms=4`.

    Raises:
        BadInputError: a word is none of these, or sets a key of a dataset that is not asked for.
    """
    named: dict[str, dict[str, Any]] = {}
    for word in weights:
        name, _, weight = word.partition("=")
        named[name] = {"name": name, "weight": _value(word, weight or "1"), "config": {}}
    for word in settings:
        place, _, value = word.partition("=")
        name, _, key = place.partition(".")
        if name not in named or not key:
            raise BadInputError(f"--set {word}: expected DATASET.KEY=VALUE with a dataset among {', '.join(named)}")
        named[name]["config"][key] = _value(word, value)
    return list(named.values())


def _value(word: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInputError(f"{word}: {text!r} is no number, string in quotes, true, false or null") from error


def main() -> None:
    """Write the files into the folder named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", action="append", metavar="NAME[=WEIGHT]", help="default: chain_sum; repeatable")
    parser.add_argument("--set", action="append", default=[], metavar="NAME.KEY=VALUE", help="a dataset's own setting")
    parser.add_argument("--train-size", type=int, default=4096)
    parser.add_argument("--test-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of the train problems; the test problems stay the same")
    arguments = parser.parse_args()
    try:
        datasets = shares(arguments.dataset or ["chain_sum"], arguments.set)
        splits = {
            "train": problems("train", arguments.train_size, arguments.seed, datasets),
            "test": problems("val", arguments.test_size, 0, datasets),
        }
    except BadInputError as error:
        parser.error(str(error))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        pq.write_table(pa.Table.from_pylist(rows), arguments.folder / f"{name}.parquet")


if __name__ == "__main__":
    main()
