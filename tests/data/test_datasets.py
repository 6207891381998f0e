"""Rows from files, with verl's columns, and what is said about files that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentverl.data.datasets import load_rows
from agentverl.errors import DatasetError

ROWS: list[dict[str, Any]] = [
    {
        "prompt": [{"role": "user", "content": f"What is {n} + 1?"}],
        "data_source": "sums",
        "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
        "extra_info": {"index": 100 + n, "tools_kwargs": {"calculator": {"digits": n}}},
        "agent_name": "tool_agent",
    }
    for n in range(6)
]


def write(folder: Path, ending: str, rows: list[dict[str, Any]]) -> Path:
    file = folder / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif ending == "json":
        file.write_text(json.dumps(rows))
    else:
        file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return file


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl"])
def test_rows_have_verls_columns_whatever_the_file(tmp_path: Path, ending: str) -> None:
    rows = load_rows(write(tmp_path, ending, ROWS))
    assert len(rows) == 6
    assert rows[2] == {
        "raw_prompt": [{"role": "user", "content": "What is 2 + 1?"}],
        "data_source": "sums",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": ROWS[2]["extra_info"],
        "tools_kwargs": {"calculator": {"digits": 2}},
        "agent_name": "tool_agent",
        "index": 102,
    }
    assert [row["index"] for row in rows] == [100, 101, 102, 103, 104, 105]
    assert [row["index"] for row in rows[4:]] == [104, 105]
    assert rows[-1]["index"] == 105


def test_several_files_stand_one_after_the_other(tmp_path: Path) -> None:
    files = [write(tmp_path, "json", ROWS[:2]), write(tmp_path, "parquet", ROWS[2:])]
    assert [row["index"] for row in load_rows(files)] == [100, 101, 102, 103, 104, 105]


def test_max_samples_keeps_the_first_or_a_choice_that_the_seed_fixes(tmp_path: Path) -> None:
    file = write(tmp_path, "jsonl", ROWS)
    assert [row["index"] for row in load_rows(file, max_samples=2)] == [100, 101]
    choices = [[row["index"] for row in load_rows(file, max_samples=3, shuffle=True, seed=s)] for s in (0, 0, 1, 2, 3)]
    assert choices[0] == choices[1]
    assert len({tuple(choice) for choice in choices}) > 1
    assert len(load_rows(file, max_samples=99)) == 6


def test_fields_that_only_other_rows_have_do_not_appear(tmp_path: Path) -> None:
    call = {"function": {"name": "a", "arguments": {"x": 1}}}
    other = {"function": {"name": "b", "arguments": {"y": 2}}}
    rows = [
        {"prompt": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [made]}]}
        for made in (call, other)
    ]
    found = load_rows(write(tmp_path, "parquet", rows))
    assert found[0]["raw_prompt"] == rows[0]["prompt"]
    assert found[1]["raw_prompt"][1]["tool_calls"] == [other]


def test_prompts_may_be_text_or_json_text(tmp_path: Path) -> None:
    rows = [{"prompt": "[1, 2] sorted?"}, {"prompt": json.dumps(ROWS[0]["prompt"])}]
    found = load_rows(write(tmp_path, "jsonl", rows))
    assert found[0]["raw_prompt"] == [{"role": "user", "content": "[1, 2] sorted?"}]
    assert found[1]["raw_prompt"] == ROWS[0]["prompt"]
    assert found[0]["data_source"] == "unknown"
    assert found[1]["index"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.parquet", None, r"data file .*none.parquet does not exist"),
        ("rows.csv", "a,b", r"ending '.csv'; expected a .parquet, .json or .jsonl file"),
        ("rows.parquet", "no parquet", "no readable parquet file"),
        ("rows.json", "[1, 2", "no valid JSON"),
        ("rows.json", '{"a": 1}\n{"a": 2}', r"one object a line is a .jsonl file"),
        ("rows.json", '"text"', "holds a str; expected a list of rows"),
        ("rows.jsonl", '{"prompt": "x"}\n{', "line 2, is no valid JSON"),
        ("rows.jsonl", "[1]", "row 0, is a list; expected an object"),
        ("rows.jsonl", "", "has no rows"),
        ("rows.jsonl", '{"question": "x"}', r"no column 'prompt' \(data.prompt_key\); they have question"),
        ("rows.jsonl", '{"prompt": []}', r"row 0: prompt is \[\]; expected a list of messages"),
        ("rows.jsonl", '{"prompt": ["x"]}', "row 0: prompt holds 'x'; expected messages with role"),
        ("rows.jsonl", '{"prompt": "x", "extra_info": [1]}', r"row 0: extra_info is \[1\]; expected a mapping"),
        ("rows.jsonl", '{"prompt": "x", "agent_name": 3}', "row 0: agent_name is 3; expected text"),
        ("rows.jsonl", '{"prompt": "x", "reward_model": "7"}', "row 0: reward_model is '7'; expected a mapping"),
        ("rows.jsonl", '{"prompt": "x", "tools_kwargs": [1]}', r"row 0: tools_kwargs is \[1\]; expected a mapping"),
        ("rows.jsonl", '{"prompt": [{"role": "user"}]}', "expected content that is text or a list of parts"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(DatasetError, match=message):
        load_rows(file)


def test_no_files_and_no_samples_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no data files"):
        load_rows([])
    with pytest.raises(DatasetError, match="max_samples is 0"):
        load_rows(write(tmp_path, "json", ROWS), max_samples=0)
    with pytest.raises(DatasetError, match=r"no column 'origin' \(data.reward_fn_key\)"):
        load_rows(write(tmp_path, "json", ROWS), reward_fn_key="origin")
