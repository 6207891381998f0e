"""Write GSM8K as train.parquet and test.parquet, in the columns that training reads."""

import argparse
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

HUB_NAME, SUBSET = "openai/gsm8k", "main"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'

EXAMPLE = """\
examples:
  python examples/data/gsm8k.py data/gsm8k                       from the Hugging Face hub
  python examples/data/gsm8k.py data/gsm8k --source ~/gsm8k      from a copy of that repository, or a saved dataset
"""


def load(source: str) -> DatasetDict:
    """Both splits, from the hub, a folder with the hub repository's files, or one that `save_to_disk` wrote."""
    folder = Path(source).expanduser()
    if (folder / "dataset_dict.json").is_file():
        return load_from_disk(str(folder))
    if folder.is_dir():
        return load_dataset(str(folder / SUBSET if (folder / SUBSET).is_dir() else folder))
    return load_dataset(source, SUBSET)


def rows(split: Dataset, name: str, instruction: str) -> Dataset:
    """The rows of a split; the ground truth is the number after `####` of the solution."""

    def row(problem: dict[str, Any], index: int) -> dict[str, Any]:
        return {
            "data_source": HUB_NAME,
            "prompt": [{"role": "user", "content": f"{problem['question']} {instruction}".strip()}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": final_number(problem["answer"])},
            "extra_info": {"split": name, "index": index, **problem},
        }

    return split.map(row, with_indices=True, remove_columns=split.column_names)


def final_number(solution: str) -> str:
    """What stands after the last `####`, without thousands separators.

    Raises:
        ValueError: the solution has no such mark.
    """
    before, mark, number = solution.rpartition("####")
    if not mark or not before:
        raise ValueError(f"a solution without '#### number': {solution[-60:]!r}")
    return number.strip().replace(",", "")


def main() -> None:
    """Write the files into the folder named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", default=HUB_NAME, help="hub name or local folder (default: %(default)s)")
    parser.add_argument("--instruction", default=INSTRUCTION, help="follows each question")
    arguments = parser.parse_args()
    try:
        loaded = load(arguments.source)
    except Exception as error:  # the hub client and the readers of files have a dozen types between them
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        sys.exit(
            f"error: {arguments.source} does not load: {first_line}\nWithout network, copy the repository "
            f"{HUB_NAME} from a machine that has it and name the copy with --source FOLDER"
        )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        rows(loaded[name], name, arguments.instruction).to_parquet(arguments.folder / f"{name}.parquet")


if __name__ == "__main__":
    main()
