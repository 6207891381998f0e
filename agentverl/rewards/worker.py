"""A process that runs scorers for `process_pool`: requests on standard input, replies on standard output."""

import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, BinaryIO

from agentverl import plugins

LENGTH = struct.Struct("<Q")


@cache
def _target(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = plugins.find("rewards", name)
    return found


def _answer(request: dict[str, Any]) -> tuple[str, Any]:
    try:
        function = _target(request["target"])
        if request["arguments"] is None:
            return "loaded", None
        return "result", function(**request["arguments"])
    except MemoryError:
        return "memory", None
    except BaseException as error:  # SystemExit too: whatever a scorer raises is reported, not obeyed
        line = traceback.extract_tb(error.__traceback__)[-1]
        return "error", f"{type(error).__name__}: {error} ({os.path.basename(line.filename)}:{line.lineno})"


def _packed(reply: tuple[str, Any]) -> bytes:
    try:
        return pickle.dumps(reply)
    except Exception as error:  # a scorer may return what no pickle holds
        return pickle.dumps(("error", f"its result cannot leave the process: {type(error).__name__}: {error}"))


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the input ends, which is when the parent closes it or dies."""
    while header := requests.read(LENGTH.size):
        request = pickle.loads(requests.read(LENGTH.unpack(header)[0]))
        # A parent that was killed cannot stop a scorer that hangs: the kernel does, a little after the deadline.
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 5)
        reply = _packed(_answer(request))
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(LENGTH.pack(len(reply)) + reply)
        replies.flush()


def main() -> None:
    """Limit the memory, keep standard output for replies (what scorers print goes to standard error), and serve."""
    memory_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
