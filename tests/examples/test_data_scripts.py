"""The scripts that write example data: what is in their files, and what they say when they cannot."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentverl.data.datasets import load_rows
from agentverl.errors import BadInputError, SettingsError
from agentverl.rewards.data_sources import default_compute_score

SCRIPTS = Path(__file__).parents[2] / "examples" / "data"
SUMS = [{"name": "chain_sum", "weight": 3, "config": {"min_digits": 2}}, {"name": "gsm_symbolic", "weight": 1}]


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "reasoning_gym_tasks.py"))


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / name), *words], capture_output=True, text=True, env=environment, check=False
    )


def test_train_and_held_out_problems_are_disjoint_whatever_the_seed(tasks: dict[str, Any]) -> None:
    held_out = tasks["problems"]("val", 40, 0, SUMS)
    questions = {row["prompt"][0]["content"] for row in held_out}
    assert len(questions) == 40
    for seed in (0, 1):
        train = {row["prompt"][0]["content"] for row in tasks["problems"]("train", 80, seed, SUMS)}
        assert len(train) == 80
        assert not train & questions


def test_both_datasets_are_scored_from_the_rows_that_a_file_gives_back(tasks: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(tasks["problems"]("train", 24, 0, SUMS)), file)
    rows = load_rows(file)
    assert {row["data_source"] for row in rows} == {"reasoning_gym/chain_sum", "reasoning_gym/gsm_symbolic"}
    for row in rows:
        truth = row["reward_model"]["ground_truth"]
        for answer, score in ((f"The answer is {truth}.", 1.0), ("I do not know.", 0.0)):
            judged = default_compute_score(row["data_source"], answer, truth, row["extra_info"])
            assert isinstance(judged, dict)
            assert judged["score"] == score


def test_words_of_the_command_line_become_shares_of_a_mix(tasks: dict[str, Any]) -> None:
    assert tasks["shares"](["chain_sum=7", "gsm_symbolic"], ["chain_sum.max_terms=4"]) == [
        {"name": "chain_sum", "weight": 7, "config": {"max_terms": 4}},
        {"name": "gsm_symbolic", "weight": 1, "config": {}},
    ]
    for weights, settings in ((["chain_sum=many"], []), (["chain_sum"], ["leg_counting.max=3"]), (["a"], ["a=3"])):
        with pytest.raises(BadInputError):
            tasks["shares"](weights, settings)


def test_a_dataset_with_too_few_questions_or_of_no_such_name_is_an_error(tasks: dict[str, Any]) -> None:
    few = [{"name": "chain_sum", "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}]
    with pytest.raises((BadInputError, SettingsError)):
        tasks["problems"]("train", 400, 0, few)
    with pytest.raises(SettingsError, match="chain_sums"):
        tasks["problems"]("train", 4, 0, [{"name": "chain_sums"}])


def test_demonstrations_are_right_and_use_the_calculator_for_long_sums(tasks: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "train.parquet"
    rows = tasks["problems"]("train", 120, 0, SUMS)
    pq.write_table(pa.Table.from_pylist(rows), file)
    module = runpy.run_path(str(SCRIPTS / "calculator_demonstrations.py"))
    made = module["demonstrations"](file, 80, 0)
    truths = {row["prompt"][0]["content"]: row["reward_model"]["ground_truth"] for row in rows}
    calls: dict[int, list[bool]] = {terms: [] for terms in range(2, 7)}
    for row in made:
        question, *reply = row["messages"]
        assert reply[-1]["content"] == f"The answer is {truths[question['content']]}."
        terms = question["content"].count(" + ") + question["content"].count(" - ") + 1
        calls[terms].append(len(reply) == 3)
    assert all(calls[5] + calls[6])
    short = calls[2] + calls[3] + calls[4]
    assert 0 < sum(short) < len(short) / 2
    with pytest.raises(BadInputError, match="expected at least 1000"):
        module["demonstrations"](file, 1000, 0)


def test_gsm8k_is_read_from_a_copy_of_its_repository(tmp_path: Path) -> None:
    (tmp_path / "copy" / "main").mkdir(parents=True)
    problem = {"question": "What is 500 + 700?", "answer": "500 + 700 = <<500+700=1200>>1200\n#### 1,200"}
    for name in ("train", "test"):
        file = tmp_path / "copy" / "main" / f"{name}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist([problem]), file)
    module = runpy.run_path(str(SCRIPTS / "gsm8k.py"))
    loaded = module["load"](str(tmp_path / "copy"))
    for name in ("train", "test"):
        file = tmp_path / f"{name}.parquet"
        module["rows"](loaded[name], name, "Think.").to_parquet(file)
        (row,) = load_rows(file)
        assert row["raw_prompt"] == [{"role": "user", "content": "What is 500 + 700? Think."}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": "1200"}
        assert row["extra_info"] == {"split": name, "index": 0, **problem}
        assert default_compute_score(row["data_source"], "#### 1200", "1200") == 1.0


def test_gsm8k_without_network_says_what_would_work(tmp_path: Path) -> None:
    result = script("gsm8k.py", str(tmp_path / "made"))
    assert result.returncode == 1
    assert "--source FOLDER" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_shows_an_example() -> None:
    result = script("calculator_demonstrations.py", "--help")
    assert result.returncode == 0
    assert "python examples/data/calculator_demonstrations.py" in result.stdout


def test_a_wrong_word_on_the_command_line_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    result = script("reasoning_gym_tasks.py", str(tmp_path / "made"), "--set", "leg_counting.max=3")
    assert result.returncode == 2
    assert "leg_counting.max=3" in result.stderr
    assert "Traceback" not in result.stderr
