"""What `dtype: auto` means on this machine."""

from functools import cache
from pathlib import Path
from typing import Literal

_NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}


@cache
def cpu_flags() -> frozenset[str]:
    """What the processor can do, as Linux names it; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(
        flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split(":")[1].split()
    )


def resolve(requested: str, device: str) -> Literal["float32", "bfloat16"]:
    """The precision to compute in on `cpu` or `cuda`; `auto` takes bfloat16 only where the processor has it."""
    if requested == "float32":
        return "float32"
    if requested == "bfloat16" or device != "cpu":
        return "bfloat16"
    return "bfloat16" if _NATIVE_BFLOAT16 & cpu_flags() else "float32"
