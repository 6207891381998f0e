"""TrainingWorker: what the workers of policy and critic share, a trained model that may be offloaded."""

from typing import ClassVar

from agentverl import device_memory
from agentverl.errors import BadInputError
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.worker import Worker
from agentverl.workers.offloading import Residence


class TrainingWorker(Worker):
    """Subclass it for a role whose model is trained; `init_model` sets `_residence`."""

    _trained: ClassVar[str]
    """What messages call the model."""
    _residence: Residence | None = None

    @property
    def residence(self) -> Residence:
        """Where the trained model's weights and its optimiser's state are, after `init_model`."""
        if self._residence is None:
            raise BadInputError(f"there is no {self._trained}: call init_model() of a worker whose run needs one")
        return self._residence

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_training_state(self) -> None:
        """Bring weights and optimiser to the device for several optimiser steps, where they are offloaded."""
        self.residence.load()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def offload_training_state(self) -> None:
        """Take them back to host memory."""
        self.residence.offload()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def memory(self) -> dict[str, float]:
        """What this rank's process held in the phases since the last call, in GiB, as metrics."""
        return device_memory.of_process.take()
