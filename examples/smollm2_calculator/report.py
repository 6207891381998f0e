"""Print what came of the example: held-out success and tool calls of the model as it comes, after SFT and after RL."""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from agentverl.tracking.jsonl import read_metrics
from agentverl.trainer.summary import wilson_interval

Metrics = Mapping[str, float]
TOOL_CALLS = "val-aux/tool_call_rate"


def report(folder: Path) -> list[dict[str, Any]]:
    """One row for each of the three models, from what `run.sh` left in a folder.

    Raises:
        RunFolderError: a part of it is not there.
    """
    held_out = [row["data_source"] for row in pq.read_table(folder / "data" / "test.parquet").to_pylist()]
    shares = {source: held_out.count(source) / len(held_out) for source in sorted(set(held_out))}
    training = [row for row in read_metrics(folder / "smollm2_calculator").values() if TOOL_CALLS in row]
    models = {"base": read_metrics(folder / "base-eval")[0], "after SFT": training[0], "after RL": training[-1]}
    return [_row(name, metrics, shares, len(held_out)) for name, metrics in models.items()]


def _row(model: str, metrics: Metrics, shares: Mapping[str, float], count: int) -> dict[str, Any]:
    by_dataset = {source.rpartition("/")[2]: metrics[f"val-core/{source}/acc/mean@1"] for source in shares}
    success = sum(share * by_dataset[source.rpartition("/")[2]] for source, share in shares.items())
    low, high = wilson_interval(success, count)
    return {
        "model": model,
        "success": round(success, 4),
        "wilson_interval_95": [round(low, 4), round(high, 4)],
        "tool_call_rate": round(metrics[TOOL_CALLS], 4),
        **{name: round(value, 4) for name, value in by_dataset.items()},
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The rows as a table in Markdown."""
    yield "| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |"
    yield "|" + "---|" * len(rows[0])
    for row in rows:
        cells = (" to ".join(f"{x:.3f}" for x in cell) if isinstance(cell, list) else cell for cell in row.values())
        yield "| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |"


def main() -> None:
    """Write `report.json` into the folder and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where run.sh put everything")
    folder = parser.parse_args().folder
    rows = report(folder)
    (folder / "report.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print(*table(rows), sep="\n")  # noqa: T201  (a script whose output this is)


if __name__ == "__main__":
    main()
