"""Bring back what is kept in host memory, for as long as it is needed."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from agentverl.device_memory import release_cached
from agentverl.engines.base import BaseEngine
from agentverl.settings.engine import FSDPSettings


class Residence:
    """Where an engine's weights and its optimiser's state are: on its device while somebody needs them there.

    What the settings offload leaves the device at once, and again whenever nobody needs it any more.

    Args:
        device: the engine's.
    """

    def __init__(self, engine: BaseEngine, fsdp: FSDPSettings, device: str) -> None:
        self._engine, self._device = engine, device
        offloaded = {"model": fsdp.param_offload, "optimizer": fsdp.optimizer_offload}
        # With offload_policy FSDP brings what it needs itself.
        self._offloaded = frozenset(part for part in offloaded if offloaded[part] and not fsdp.offload_policy)
        self._needed: Counter[str] = Counter()
        self._training = ExitStack()
        self._move("cpu", self._offloaded)

    @contextmanager
    def on_device(self, *, optimizer: bool = False) -> Iterator[None]:
        """Within it, weights (and with `optimizer` the optimiser's state) are where the engine computes; may nest."""
        parts = self._offloaded & {"model", *(("optimizer",) if optimizer else ())}
        self._move("device", frozenset(part for part in parts if not self._needed[part]))
        self._needed.update(parts)
        try:
            yield
        finally:
            self._needed.subtract(parts)
            self._move("cpu", frozenset(part for part in parts if not self._needed[part]))

    def load(self) -> None:
        """Bring what training needs, until `offload`: for several optimiser steps on one batch."""
        self._training.enter_context(self.on_device(optimizer=True))

    def offload(self) -> None:
        """End what `load` began; does nothing where nothing was loaded."""
        self._training.close()

    def _move(self, target: str, parts: frozenset[str]) -> None:
        if parts:
            self._engine.to(target, model="model" in parts, optimizer="optimizer" in parts)
            release_cached(self._device)
