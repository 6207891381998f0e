"""Two sides of a comparison, each a process that works when it is told to, so that their turns can be interleaved."""

import json
import os
import statistics
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class Side:
    """A program that takes one turn a line of standard input and answers each with a line of JSON."""

    def __init__(self, name: str, python: Path, script: Path, *arguments: str, threads: int = 2) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.name = name
        self.turns: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def turn(self, *, warm_up: bool = False) -> dict[str, Any]:
        """Let the side work once; what it answers is kept unless it only warms up."""
        answer = self._ask("turn")
        if not warm_up:
            self.turns.append(answer)
        return answer

    def end(self) -> dict[str, Any]:
        """End the side; its last answer holds `peak_memory_bytes`."""
        answer = self._ask("end")
        self._close()
        return answer

    def median(self, key: str) -> float:
        """The median of one number over all turns."""
        return statistics.median(turn[key] for turn in self.turns)

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self._close()
        raise RuntimeError(f"the side {self.name!r} ended without an answer")

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(timeout=60)


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison; `ratio` is always a gain, at least `required` to pass."""

    name: str
    ours: float
    other: float
    unit: str
    ratio: float
    required: float

    @classmethod
    def of_rates(cls, name: str, ours: float, other: float, unit: str, required: float) -> "Case":
        """More is better."""
        return cls(name, round(ours, 4), round(other, 4), unit, round(ours / other, 4), required)

    @classmethod
    def of_costs(cls, name: str, ours: float, other: float, unit: str, required: float) -> "Case":
        """Less is better: times, bytes."""
        return cls(name, round(ours, 6), round(other, 6), unit, round(other / ours, 4), required)


def report(cases: list[Case]) -> None:
    """Print the cases as one JSON object on the last line; its `ratio` of at least 1 passes."""
    smallest = min(case.ratio / case.required for case in cases)
    print(json.dumps({"cases": [asdict(case) for case in cases], "ratio": round(smallest, 4)}))  # noqa: T201
