"""Lines survive kills and full disks; a torn one costs itself and no other."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentverl.tracking.json_lines import JsonLines, read_json_lines


def records(path: Path) -> list[dict[str, object]]:
    return [record for _, record in read_json_lines(path)]


def test_writes_what_json_does_not_know(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "deep" / "a.jsonl")
    lines.append(
        {"array": np.arange(3), "scalar": np.float32(0.5), "nan": math.nan, "set": {1}, "path": tmp_path, 3: 4}
    )
    lines.close()
    lines.close()
    assert records(tmp_path / "deep" / "a.jsonl") == [
        {"array": [0, 1, 2], "scalar": 0.5, "nan": None, "set": [1], "path": repr(tmp_path), "3": 4}
    ]


@given(st.integers(0, 60))
@settings(max_examples=20)
def test_a_file_cut_anywhere_keeps_its_whole_lines_and_takes_new_ones(cut: int) -> None:
    with TemporaryDirectory() as folder:
        _cut_and_go_on(Path(folder) / "torn.jsonl", cut)


def _cut_and_go_on(path: Path, cut: int) -> None:
    lines = JsonLines(path)
    for number in range(3):
        lines.append({"number": number, "text": "0123456789"})
    lines.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    kept = whole[: len(whole) - cut].count(b"}")
    again = JsonLines(path)
    again.append({"number": 99})
    again.close()
    assert [record["number"] for record in records(path)] == [*range(kept), 99]


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    program = (
        "import sys; from pathlib import Path; from agentverl.tracking.json_lines import JsonLines\n"
        "lines = JsonLines(Path(sys.argv[1])); number = 0\n"
        "while True:\n    lines.append({'number': number, 'text': 'x' * 10000}); number += 1\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    while not path.exists() or path.stat().st_size < 200_000:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    numbers = [record["number"] for record in records(path)]
    assert len(numbers) >= 19
    assert numbers == list(range(len(numbers)))


def test_half_a_character_is_replaced_instead_of_losing_the_record(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "x.jsonl")
    lines.append({"text": "a\ud800b", "list": ["\udfff", 1, None, {"\ud800": 2.5}]})
    lines.append({"text": "fine"})
    lines.close()
    first, second = (record for _, record in read_json_lines(tmp_path / "x.jsonl"))
    assert first["text"].startswith("a\N{REPLACEMENT CHARACTER}")
    assert first["text"].endswith("b")
    assert first["list"][1:3] == [1, None]
    assert second == {"text": "fine"}
