"""Daemon threads that come to an end before the interpreter does.

What hangs in a daemon thread never keeps the process alive. But an interpreter that ends takes such a thread down as it
comes back to Python, and where that is from C++, as torch's, "terminate called without an active exception" aborts all.
"""

import atexit
import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 2.0
"""How long an interpreter that ends waits for all of them together."""


def _nothing() -> None:
    pass


class DaemonThread(threading.Thread):
    """Does a work; `stop` asks it to end soon, where it does not end by itself."""

    def __init__(self, work: Callable[[], object], name: str, stop: Callable[[], object] = _nothing) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.stop = stop

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.stop = _nothing  # a thread that ended keeps nothing of what it belonged to


def end_before_others() -> None:
    """End them before anything that was imported by now shuts itself down: the latest comes first in that."""
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    for thread in _living():
        thread.stop()
    while (living := _living()) and (seconds := until - time.monotonic()) > 0:
        living[0].join(seconds)


def _living() -> list[DaemonThread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, DaemonThread)]


end_before_others()
