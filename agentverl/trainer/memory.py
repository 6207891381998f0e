"""The peak resident memory of this process and its children, sampled by a thread."""

import threading

import psutil


class MemoryMeter:
    """Samples the resident memory of the process tree; `peak_bytes` is the most seen so far."""

    def __init__(self, interval_seconds: float = 0.5) -> None:
        self.peak_bytes = 0
        self._interval_seconds = interval_seconds
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="memory-meter", daemon=True)

    def __enter__(self) -> "MemoryMeter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    def sample(self) -> int:
        """Resident bytes now; also raises the peak."""
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # a child that ended between the listing and the reading
                continue
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.sample()
