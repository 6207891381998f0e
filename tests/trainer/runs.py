"""Small training runs in processes that can be killed, and what they leave behind."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from agentverl.tracking.journal import read_journal
from agentverl.trainer.checkpoints import CheckpointFolder
from tests.engines.saved import saved_tensors

SMALL = (
    "data.train_size=16",
    "data.val_size=4",
    "data.train_batch_size=4",
    "actor.ppo_mini_batch_size=4",
    "rollout.n=4",
    "trainer.save_freq=2",
    "trainer.test_freq=4",
    "trainer.log_val_generations=0",
    "trainer.logger=[file]",
    "trainer.deterministic=true",
    "actor.optim.lr_scheduler_type=constant",
)
"""The quickstart with 4 prompts of 4 samples a step: an epoch is 4 steps."""

_PRELOADED = [
    "agentverl.trainer.train",
    "agentverl.agent_loops.tool_agent",
    "agentverl.engines.fsdp.engine",
    "agentverl.environments.arithmetic",
    "agentverl.rollout.hf.replica",
    "agentverl.settings.compose",
    "matplotlib.figure",
    "transformers.models.qwen2.modeling_qwen2",
]
_PATIENCE_SECONDS = 600.0
TIME_AND_MEMORY = ("timing_", "perf/")


def _train(words: Sequence[str], folder: Path, log: Path) -> None:
    """What a process does: the command line in a folder of its own, what it prints in a file."""
    os.chdir(folder)
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from agentverl.cli import main

    main(["train", *words])


@dataclass
class Training:
    """`agentverl train` with some words, started as often as wanted, each time in a process of its own.

    The processes are forked from one that has imported everything, which saves seconds each time.
    """

    base: Path
    words: tuple[str, ...]
    process: "ForkServerProcess | _Command | None" = None

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.base / "outputs" / "quickstart"

    @property
    def printed(self) -> str:
        """What the processes printed so far."""
        return (self.base / "log").read_text()

    def start(self, *more: str) -> "Training":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self.base.mkdir(exist_ok=True)
        self.process = context.Process(target=_train, args=((*self.words, *more), self.base, self.base / "log"))
        self.process.start()
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.is_alive()

    def wait_for(self, condition: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> bool:
        """Look for something as often as possible while the process runs; whether it came."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            if not self.running:
                return condition()
            time.sleep(0.0005)
        self.send(signal.SIGKILL)
        raise TimeoutError(f"nothing came in {seconds} s; printed: {self.printed}")

    def let_run(self, seconds: float) -> None:
        """Wait, at most until the process ends."""
        assert self.process is not None
        self.process.join(seconds)

    def send(self, number: signal.Signals) -> int:
        """Send a signal and wait for the process to end; its exit code, negative where the signal ended it."""
        assert self.process is not None
        assert self.process.pid is not None
        if self.running:
            os.kill(self.process.pid, number)
        return self.end()

    def end(self, seconds: float = _PATIENCE_SECONDS) -> int:
        """Wait for the process to end; its exit code."""
        self.let_run(seconds)
        if self.running:
            self.send(signal.SIGKILL)
            raise TimeoutError(f"still running after {seconds} s; printed: {self.printed}")
        assert self.process is not None
        code = self.process.exitcode
        assert code is not None
        return code

    def finish(self, *more: str) -> int:
        """Start once more and let it come to its end; the exit code."""
        return self.start(*more).end()

    @property
    def lines(self) -> int:
        """Steps logged so far, the first validation included."""
        file = self.run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    @property
    def checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.run / "checkpoints")


class _Command:
    """A subprocess with the face of a multiprocessing one."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def join(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)

    @property
    def exitcode(self) -> int | None:
        return self._popen.poll()


class TrainingByCommand(Training):
    """The same with the command as a user types it, imports and all."""

    def start(self, *more: str) -> Training:
        command = Path(sys.executable).with_name("agentverl")
        self.base.mkdir(exist_ok=True)
        with (self.base / "log").open("ab") as log:
            self.process = _Command(
                subprocess.Popen([command, "train", *self.words, *more], cwd=self.base, stdout=log, stderr=log)
            )
        return self


def logged(run: Path) -> dict[int, dict[str, float]]:
    """All metrics but time and memory, by step; each step has one line."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert len(set(steps)) == len(steps), f"steps logged twice: {steps}"
    return {
        line["step"]: {name: value for name, value in line["data"].items() if not name.startswith(TIME_AND_MEMORY)}
        for line in lines
    }


def journal(run: Path) -> list[dict[str, Any]]:
    """The controller's records of a run, in order; what a kill cut short left out."""
    records = []
    for line in (run / "journal" / "controller.jsonl").read_bytes().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def committed(run: Path) -> list[dict[str, Any]]:
    """The journal's records that no later mark rolled back."""
    kept: list[dict[str, Any]] = []
    for record in journal(run):
        if record["kind"] == "superseded":
            kept = [earlier for earlier in kept if earlier["step"] <= record["after_step"]]
        else:
            kept.append(record)
    return kept


def assert_each_prompt_is_in_one_step(run: Path) -> None:
    records = committed(run)
    steps = [record for record in records if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, len(steps) + 1))
    prompts = Counter(uid for record in steps for uid in record["uids"])
    assert set(prompts.values()) == {1}
    trajectories = list(read_journal(run / "journal"))
    played = Counter((record["uid"], record["sample"]) for record in trajectories)
    assert set(played.values()) == {1}
    trained = {(record["step"], record["uid"]) for record in trajectories if record["split"] == "train"}
    assert trained == {(record["step"], uid) for record in steps for uid in record["uids"]}


def resumed_from(run: Path) -> list[int]:
    """For each process that came so far, the step after which it went on; -1 where it began anew."""
    return [record["after_step"] for record in journal(run) if record["kind"] == "superseded"]


def assert_steps_follow(run: Path) -> None:
    """Each process went on with the step after its checkpoint, and left none out."""
    expected = None
    for record in journal(run):
        if record["kind"] == "superseded":
            expected = max(record["after_step"], 0) + 1
        elif record["kind"] == "step":
            assert record["step"] == expected
            expected += 1


def assert_checkpoints_are_whole(run: Path, reference: Path) -> None:
    """Each checkpoint that has its name holds what the undisturbed run's holds."""
    theirs = CheckpointFolder(reference / "checkpoints")
    ours = CheckpointFolder(run / "checkpoints")
    for step in set(ours.steps()) & set(theirs.steps()):
        one, other = ours.of(step), theirs.of(step)
        assert _files(one) == _files(other)
        for role in (path.name for path in one.iterdir() if path.is_dir()):
            state, expected = (saved_tensors(folder / role) for folder in (one, other))
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in state)
        notes = [json.loads((folder / "trainer.json").read_text()) for folder in (one, other)]
        for note in notes:
            note.pop("wall_seconds")
        assert notes[0] == notes[1]


def assert_equals(run: Path, reference: Path) -> None:
    """A finished run is, in all but time and memory, what the undisturbed one is; nothing half done lies about."""
    assert logged(run) == logged(reference)
    assert_steps_follow(run)
    assert_each_prompt_is_in_one_step(run)
    assert_checkpoints_are_whole(run, reference)
    assert _steps(run)[-1] == _steps(reference)[-1]
    for file in (reference / "validation").iterdir():
        assert (run / "validation" / file.name).read_bytes() == file.read_bytes()
    assert not list(run.rglob("*.unfinished"))
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (run, reference)]
    for summary in summaries:
        del summary["wall_seconds"], summary["peak_memory_bytes"]
    assert summaries[0] == summaries[1]


def _steps(run: Path) -> list[int]:
    return CheckpointFolder(run / "checkpoints").steps()


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
