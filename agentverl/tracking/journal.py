"""The journal: every trajectory, token by token, in append-only files; what the viewer and `rescore` read."""

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentverl.errors import RunFolderError
from agentverl.tracking.json_lines import JsonLines, plain, read_json_lines
from agentverl.trajectory import AgentLoopOutput

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1

_LEFT_OUT = frozenset({"routed_experts", "multi_modal_data", "mm_processor_kwargs", "mm_processor_output"})
"""Fields of a sequence that are as large as the model's inputs; images stand in the messages, by their hash."""


@dataclass(slots=True, kw_only=True)
class TrajectoryRecord:
    """One trajectory, as it is written."""

    uid: str
    sample: int
    step: int
    """The step that it was sampled for."""
    split: str
    """`train` or `val`."""
    outputs: Sequence[AgentLoopOutput]
    trajectory_id: str = ""
    termination: str = ""
    reward: float | None = None
    reward_components: Mapping[str, Any] = field(default_factory=dict)
    environment_score: float | None = None
    """What the environment's own `score` gave, where it was asked."""
    error: str | None = None
    """Why it failed; it then has no reward."""
    data_source: str = ""
    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part of the episode."""

    def as_dict(self) -> dict[str, Any]:
        """Its fields; of the sequences those that the journal keeps."""
        body = {name: getattr(self, name) for name in self.__slots__}
        body["outputs"] = [
            {name: value for name, value in output.__dict__.items() if name not in _LEFT_OUT} for output in self.outputs
        ]
        return body


@dataclass(frozen=True, slots=True)
class Written:
    """A record on disk."""

    file: Path
    start: int

    def read(self) -> dict[str, Any]:
        """The record, as `read_journal` would give it.

        Raises:
            OSError, ValueError: it is not there any more.
        """
        with self.file.open("rb") as file:
            file.seek(self.start)
            record: dict[str, Any] = orjson.loads(file.readline())
        return record


class Journal:
    """Writes one file of a run's journal; each process that writes has a `writer` name of its own.

    When writing fails later, for instance on a full disk, it warns once and training goes on; it tries again with each
    record.

    Raises:
        RunFolderError: the folder cannot be written.
    """

    def __init__(self, folder: Path, writer: str = "controller") -> None:
        self.folder = folder
        self._images = folder / "images"
        try:
            self._lines = JsonLines(folder / f"{writer}.jsonl", self._plain)
        except OSError as error:
            raise RunFolderError(f"the journal in {folder} cannot be written: {error.strerror or error}") from error
        self._warned = False

    def trajectory(self, record: TrajectoryRecord) -> Written | None:
        """Write one trajectory; None where that failed."""
        return self._write("trajectory", record.as_dict())

    def step(self, step: int, uids: Sequence[str], advantages: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Write that a step trained on these prompts; it counts once a checkpoint includes it.

        `advantages`: by trajectory id, for each of its sequences a number or one number a response token.
        """
        self._write("step", {"step": step, "uids": list(uids), "advantages": advantages or {}})

    def supersede(self, after_step: int) -> None:
        """Mark all records of later steps written so far as rolled back: the run goes on from a checkpoint."""
        self._write("superseded", {"after_step": after_step})

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _write(self, kind: str, body: dict[str, Any]) -> Written | None:
        # The kind comes first, so that readers can skip lines without parsing them.
        record = {"kind": kind, "schema_version": SCHEMA_VERSION, "time_ns": time.time_ns(), **body}
        try:
            return Written(self._lines.path, self._lines.append(record))
        except (OSError, TypeError) as error:
            if not self._warned:
                logger.warning("the journal %s cannot be written, training goes on: %s", self._lines.path, error)
            self._warned = True
            return None

    def _plain(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return self._image(value, "bin")
        if hasattr(value, "tobytes") and hasattr(value, "save"):  # a PIL image
            return self._image(value, "png")
        return plain(value)

    def _image(self, value: Any, suffix: str) -> dict[str, str]:
        content = value if isinstance(value, bytes) else value.tobytes()
        digest = hashlib.sha256(content).hexdigest()
        path = self._images / f"{digest}.{suffix}"
        if not path.exists():
            self._images.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{self._lines.path.stem}-{path.name}")
            if isinstance(value, bytes):
                unfinished.write_bytes(value)
            else:
                value.save(unfinished, format="png")
            unfinished.replace(path)
        return {"image": path.name}


def read_journal(
    folder: Path,
    kind: str = "trajectory",
    *,
    step: int | None = None,
    uid: str | None = None,
    split: str | None = None,
    with_superseded: bool = False,
) -> Iterator[dict[str, Any]]:
    """The records of a kind in all files of a journal, file by file.

    Those rolled back are left out, and of a trajectory that was played again the earlier: a runner may have been lost
    after it wrote one and before it handed it over.

    Raises:
        RunFolderError: there is no journal, or a newer agentverl wrote it.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise RunFolderError(f"{folder} holds no journal (no *.jsonl file)")
    marks = [] if with_superseded else _marks(files)
    played_at = {} if with_superseded or len(files) == 1 else _last_played(files)
    wanted = {"step": step, "uid": uid, "split": split}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    for file in files:
        for number, record in read_json_lines(file, (f'{{"kind":"{kind}"'.encode(),)):
            if record["schema_version"] > SCHEMA_VERSION:
                raise RunFolderError(f"{file} was written by a newer agentverl (schema {record['schema_version']})")
            if any(record.get(key) != value for key, value in wanted.items()):
                continue
            if record["time_ns"] < played_at.get(_sample(record), 0):
                continue
            if not any(mark.covers(file, number, record) for mark in marks):
                yield record


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where and when the steps after a checkpoint were rolled back."""

    file: Path
    number: int
    time_ns: int
    after_step: int

    def covers(self, file: Path, number: int, record: Mapping[str, Any]) -> bool:
        """In its own file a mark covers what stands before it; in others, what was written earlier."""
        before = number < self.number if file == self.file else record["time_ns"] < self.time_ns
        return before and record["step"] > self.after_step


def _marks(files: Sequence[Path]) -> list[_Mark]:
    return [
        _Mark(file, number, record["time_ns"], record["after_step"])
        for file in files
        for number, record in read_json_lines(file, (b'{"kind":"superseded"',))
    ]


def _sample(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which sample of which prompt a trajectory is; records of other kinds are none."""
    return tuple(record.get(key) for key in ("kind", "step", "split", "uid", "sample"))


def _last_played(files: Sequence[Path]) -> dict[tuple[Any, ...], int]:
    """When each sample of a prompt was written last, in nanoseconds."""
    last: dict[tuple[Any, ...], int] = {}
    for file in files:
        for _, record in read_json_lines(file, (b'{"kind":"trajectory"',)):
            last[_sample(record)] = max(last.get(_sample(record), 0), record["time_ns"])
    return last
