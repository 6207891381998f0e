"""`agentverl` in this process, in a folder of its own, with a run that is as small as one can be."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentverl.cli import run
from agentverl.tracking.journal import read_journal

SMALL = (
    "data.train_size=2",
    "data.train_batch_size=2",
    "actor.ppo_mini_batch_size=2",
    "rollout.n=2",
    "data.max_response_length=48",
    "trainer.total_training_steps=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.logger=[file]",
    "agent.retry_backoff_seconds=0.001",
)
"""One step on two prompts of two samples, nothing validated."""

File = str | bytes | Callable[[Path], object]
"""A file's content, or what makes whatever stands at its path."""


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    printed: str
    """On standard error."""
    out: str
    run: Path

    def metrics(self) -> dict[str, float]:
        """Those of the last step."""
        line = (self.run / "metrics.jsonl").read_text().splitlines()[-1]
        data: dict[str, float] = json.loads(line)["data"]
        return data

    def texts(self, role: str) -> list[str]:
        """The contents of all messages of a role in the journal."""
        messages = [
            message
            for record in read_journal(self.run / "journal")
            for output in record["outputs"]
            for message in output["messages"]
        ]
        return [message["content"] for message in messages if message["role"] == role]


@dataclass(frozen=True)
class Command:
    """Runs `agentverl` in `folder`, which is the working directory."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str, files: Mapping[str, File] | None = None, name: str = "quickstart") -> Ended:
        for path, content in (files or {}).items():
            place(self.folder / path, content)
        self.capture.readouterr()
        code = run(words)
        captured = self.capture.readouterr()
        return Ended(code, captured.err, captured.out, self.folder / "outputs" / name)

    def train(self, *words: str, files: Mapping[str, File] | None = None, name: str = "quickstart") -> Ended:
        """`agentverl train` of the quickstart, as small as it can be."""
        from_files = any(word.startswith("data.train_files=") for word in words)
        small = [word for word in SMALL if not (from_files and word.startswith("data.train_size="))]
        return self("train", *small, *words, files=files, name=name)


def place(path: Path, content: File) -> None:
    """Put a file, or whatever else, where a case wants it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)


def rows(*wanted: dict[str, Any], count: int = 2) -> str:
    """A file of rows that work, each changed as wanted."""
    fine = {"prompt": "What is 1 + 1?", "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "2"}}
    changed = wanted or ({},)
    return "".join(json.dumps({**fine, **changes}) + "\n" for changes in changed for _ in range(count))
