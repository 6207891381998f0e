"""SIGTERM ends a run after the step it is in, saved, so that a scheduler can start it again."""

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """Notices SIGTERM while it is entered; only the main thread can, others see none."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
