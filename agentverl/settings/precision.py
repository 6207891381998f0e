"""What `dtype: auto` means on this machine."""

import logging
from functools import cache
from pathlib import Path
from typing import Literal

logger = logging.getLogger(__name__)

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
    native = device != "cpu" or bool(_NATIVE_BFLOAT16 & cpu_flags())
    if requested == "bfloat16" and not native:
        _warn_of_emulation()
    return "bfloat16" if requested == "bfloat16" or (requested == "auto" and native) else "float32"


@cache
def _warn_of_emulation() -> None:
    """Once a process."""
    logger.warning(
        "dtype=bfloat16 is emulated on this processor, which has no avx512_bf16, and much slower than float32; "
        "dtype=auto takes what is fast"
    )
