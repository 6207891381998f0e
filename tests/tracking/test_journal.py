"""The journal keeps what was sampled, tells what was rolled back, and never stops a run."""

import errno
import logging
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from agentverl.errors import RunFolderError
from agentverl.tracking.journal import SCHEMA_VERSION, Journal, read_journal
from tests.tracking.episodes import as_read, output, record


def test_a_trajectory_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    written = record(outputs=[output(), output(role="child", sequence_index=1, trainable=False)])
    place = journal.trajectory(written)
    journal.close()
    (read,) = read_journal(tmp_path)
    assert {key: read[key] for key in as_read(written)} == as_read(written)
    assert place is not None
    assert place.read() == read
    assert read["schema_version"] == SCHEMA_VERSION
    first = read["outputs"][0]
    assert first["response_ids"] == output().response_ids
    assert first["response_logprobs"] == output().response_logprobs
    assert first["version_spans"] == [[2, 3], [7, 4]]
    assert first["turns"][0]["tool_names"] == ["calculator"]
    assert first["termination"] == "answered"
    assert "routed_experts" not in first


def test_reads_by_step_uid_split_and_kind(tmp_path: Path) -> None:
    with_many = Journal(tmp_path, "runner-0")
    other = Journal(tmp_path, "runner-1")
    with_many.trajectory(record(step=1, uid="a"))
    other.trajectory(record(step=1, uid="b"))
    other.trajectory(record(step=2, uid="a", split="val"))
    with_many.step(1, ["a", "b"], {"a/0": [0.5]})

    def uids(**wanted: Any) -> list[str]:
        return [one["uid"] for one in read_journal(tmp_path, **wanted)]

    assert uids() == ["a", "b", "a"]
    assert uids(step=1) == ["a", "b"]
    assert uids(uid="a") == ["a", "a"]
    assert uids(split="val", uid="b") == []
    (step,) = read_journal(tmp_path, "step")
    assert (step["uids"], step["advantages"]) == (["a", "b"], {"a/0": [0.5]})


def test_steps_that_were_rolled_back_are_left_out_in_all_files(tmp_path: Path) -> None:
    runner, controller = Journal(tmp_path, "a-runner"), Journal(tmp_path, "controller")
    for step in (1, 2, 3):
        runner.trajectory(record(step=step, uid=f"first-{step}"))
        controller.step(step, [f"first-{step}"])
    controller.supersede(after_step=1)
    for step in (2, 3):
        runner.trajectory(record(step=step, uid=f"second-{step}"))
        controller.step(step, [f"second-{step}"])
    assert [one["uid"] for one in read_journal(tmp_path)] == ["first-1", "second-2", "second-3"]
    assert [one["uids"] for one in read_journal(tmp_path, "step")] == [["first-1"], ["second-2"], ["second-3"]]
    assert len(list(read_journal(tmp_path, with_superseded=True))) == 5


def test_of_a_trajectory_that_was_played_again_the_last_one_counts(tmp_path: Path) -> None:
    for name in ("runner-rank1", "runner-rank0"):
        journal = Journal(tmp_path, name)
        journal.trajectory(record(uid="lost with its runner"))
        journal.trajectory(record(uid=f"of {name}"))
        journal.close()
    read = {one["uid"]: one for one in read_journal(tmp_path)}
    assert len(list(read_journal(tmp_path))) == len(read) == 3
    assert len(list(read_journal(tmp_path, with_superseded=True))) == 4
    assert read["lost with its runner"]["time_ns"] > read["of runner-rank1"]["time_ns"]


def test_a_line_cut_by_a_kill_costs_only_itself(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.trajectory(record(uid="whole"))
    journal.trajectory(record(uid="cut"))
    path = tmp_path / "controller.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    Journal(tmp_path).trajectory(record(uid="after"))
    assert [one["uid"] for one in read_journal(tmp_path)] == ["whole", "after"]


def test_images_are_kept_once_by_their_hash(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.fromarray(np.zeros((2, 3, 3), dtype=np.uint8))
    message = {"role": "user", "content": [{"type": "image", "image": image}, {"type": "image", "image": b"raw"}]}
    journal = Journal(tmp_path)
    for _ in range(2):
        journal.trajectory(record(outputs=[output(messages=[message])]))
    first, second = (one["outputs"][0]["messages"][0]["content"] for one in read_journal(tmp_path))
    assert first == second
    names = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert sorted(part["image"]["image"] for part in first) == names
    assert [name.rpartition(".")[2] for name in names].count("png") == 1


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written: Not a directory"):
        Journal(tmp_path / "file" / "journal")


def test_a_full_disk_later_warns_once_and_the_next_record_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    journal.trajectory(record(uid="before"))
    size = (tmp_path / "controller.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        with caplog.at_level(logging.WARNING):
            journal.trajectory(record(uid="lost"))
            journal.trajectory(record(uid="lost too"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    journal.trajectory(record(uid="after"))
    assert [os.strerror(errno.EFBIG) in message for message in caplog.messages] == [True]
    assert [one["uid"] for one in read_journal(tmp_path)] == ["before", "after"]
    assert "line 2 cannot be read and is left out" in caplog.messages[-1]


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    line = {"kind": "trajectory", "schema_version": SCHEMA_VERSION + 1, "time_ns": 0, "step": 1}
    (tmp_path / "controller.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(RunFolderError, match="written by a newer agentverl"):
        list(read_journal(tmp_path))


def test_an_empty_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no journal"):
        list(read_journal(tmp_path))
