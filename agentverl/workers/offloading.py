"""Bring back what is kept in host memory, for as long as it is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentverl.engines.base import BaseEngine
from agentverl.settings.engine import FSDPSettings


@contextmanager
def on_device(engine: BaseEngine, fsdp: FSDPSettings, *, optimizer: bool) -> Iterator[None]:
    """Within it, weights (and with `optimizer` the optimiser's state) are where the engine computes."""
    moved = {"model": fsdp.param_offload, "optimizer": fsdp.optimizer_offload and optimizer}
    if fsdp.offload_policy:
        moved = {}  # FSDP brings what it needs itself
    if any(moved.values()):
        engine.to("device", **moved)
    try:
        yield
    finally:
        if any(moved.values()):
            engine.to("cpu", **moved)
