"""Freed blocks stay with the process, and all threads share them."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import numpy as np, psutil
from agentverl import freed_memory
if sys.argv[1] == "keep":
    freed_memory.keep()
before = psutil.Process().memory_info().rss
def fill():
    np.ones(8 * 2**20)  # 64 MiB, freed at once
for _ in range(4):
    thread = threading.Thread(target=fill)
    thread.start(); thread.join()
print((psutil.Process().memory_info().rss - before) / 2**20)
"""


def held_mebibytes(choice: str) -> float:
    output = subprocess.run([sys.executable, "-c", PROGRAM, choice], capture_output=True, text=True, check=True).stdout
    return float(output)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc's allocator is told to keep memory")
def test_a_freed_block_is_kept_once_for_all_threads() -> None:
    assert held_mebibytes("default") < 32
    assert 48 < held_mebibytes("keep") < 96
