"""Freed blocks stay with the process, and all threads share them; the largest go."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import numpy as np, psutil
from agentverl import freed_memory
if sys.argv[2] == "keep":
    freed_memory.keep()
before = psutil.Process().memory_info().rss
def fill():
    for _ in range(4):
        [np.ones(int(sys.argv[1]) * 2**17) for _ in range(4)]  # freed at once
for _ in range(4):
    thread = threading.Thread(target=fill)
    thread.start(); thread.join()
print((psutil.Process().memory_info().rss - before) / 2**20)
"""


def held_mebibytes(block_mebibytes: int, choice: str) -> float:
    program = [sys.executable, "-c", PROGRAM, str(block_mebibytes), choice]
    return float(subprocess.run(program, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc's allocator is told to keep memory")
def test_freed_blocks_are_kept_once_for_all_threads_unless_they_are_large() -> None:
    assert held_mebibytes(64, "default") < 32
    assert 4 * 16 <= held_mebibytes(16, "keep") < 6 * 16
    assert held_mebibytes(48, "keep") < 48
