"""The other end of `comparison.Side`: work when told to, answer in JSON."""

import json
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any


def commands() -> Iterator[str]:
    """Lines of standard input until `end`."""
    for line in sys.stdin:
        command = line.strip()
        if command == "end":
            answer({"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
            return
        yield command


def answer(values: dict[str, Any]) -> None:
    """Send one answer."""
    print(json.dumps(values), flush=True)  # noqa: T201


def serve(turn: Callable[[], dict[str, Any]]) -> None:
    """Answer each command with what `turn` returns."""
    for _ in commands():
        answer(turn())
