"""What a process frees stays with it, to be written again without asking the system for pages."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_KEPT_BYTES = 2**30
_LARGE_BYTES = 2**25


def keep() -> None:
    """Let glibc's allocator keep up to 1 GiB of freed blocks below 32 MiB; elsewhere do nothing.

    Call it before threads start.

    By default the allocator returns blocks from 128 KiB on to the system, and the kernel clears the pages of the next
    activation again: up to a fifth of a small model's training pass on a CPU. Larger blocks, such as an embedding or
    its gradient, are few, and would hold on to memory: smaller ones settle in the hole that one leaves, and the next
    one finds no room. One arena serves all threads, so that what one has freed the next one takes; with an arena a
    thread, each would keep its own.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
