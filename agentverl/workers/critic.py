"""CriticWorker: the model that estimates values, trained beside the policy."""

from functools import partial
from pathlib import Path

from agentverl import device_memory
from agentverl.data.model_folder import resolve_model_path
from agentverl.engines.base import BaseEngine
from agentverl.errors import BadInputError
from agentverl.protocol.data_proto import DataProto
from agentverl.settings.critic import CriticSettings
from agentverl.settings.model import ModelSettings
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.workers import checkpoints
from agentverl.workers.engine_settings import (
    engine_settings,
    make_engine,
    micro_batch,
    optimizer_settings,
    resolve_device,
)
from agentverl.workers.offloading import Residence
from agentverl.workers.training_step import TRAINING_STEP
from agentverl.workers.training_worker import TrainingWorker
from agentverl.workers.value_loss import value_loss


class CriticWorker(TrainingWorker):
    """Holds the training engine of one critic; call `init_model` first.

    Args:
        config: the section `critic`, completed from the actor's.
        model: the critic's whole model section.
        device: `trainer.device`.
        optimiser_steps: of the whole run, for schedules that decay; -1 where it is unknown.
    """

    _trained = "critic"

    def __init__(
        self, config: CriticSettings, model: ModelSettings, device: str = "auto", optimiser_steps: int = -1
    ) -> None:
        self.config = config
        self.model = model
        self._device = resolve_device(device)
        self._optimiser_steps = optimiser_steps
        self._engine: BaseEngine | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the critic: the model folder with a value head that gives 0 until it is trained.

        Raises:
            BadInputError: the folder, the engine or the architecture cannot work.
        """
        config = self.config
        self._engine = make_engine(
            config.strategy,
            engine_settings(
                self.model,
                resolve_model_path(str(self.model.path)).path,
                config.fsdp,
                self._device,
                head="value",
                optimizer=optimizer_settings(config.optim, config.grad_clip, self._optimiser_steps),
                enable_gradient_checkpointing=self.model.enable_gradient_checkpointing,
                train_micro_batch=micro_batch(config.micro_batch_limit),
                infer_micro_batch=micro_batch(config.values_limit),
            ),
        )
        self._residence = Residence(self._engine, config.fsdp, self._device)

    @property
    def engine(self) -> BaseEngine:
        """The training engine, after `init_model`."""
        if self._engine is None:
            raise BadInputError("there is no critic: call init_model() first")
        return self._engine

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, data: DataProto) -> DataProto:
        """`values` of the response tokens, each before its token is known; 0 where the mask is 0."""
        with device_memory.of_process.phase("values"), self.residence.on_device():
            return self.engine.infer_batch(data)

    @register(dispatch_mode=TRAINING_STEP)
    def update_critic(self, data: DataProto) -> dict[str, float]:
        """One optimiser step on all of `data`, which is one mini-batch; returns metrics under verl's names.

        Columns: those of `value_loss`.
        """
        with device_memory.of_process.phase("update_critic"), self.residence.on_device(optimizer=True):
            metrics = self.engine.train_batch(
                data.select(non_tensor_batch_keys=[]), partial(value_loss, self.config.cliprange_value)
            )
            metrics["lr"] = self.engine.lr_scheduler_step()
        return {name if "/" in name else f"critic/{name}": value for name, value in metrics.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path: Path) -> None:
        """Write what `critic.checkpoint.save_contents` names into an existing folder."""
        self.engine.save_checkpoint(path, self.config.checkpoint.save_contents)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: Path) -> None:
        """Go on from what `save_checkpoint` wrote.

        Raises:
            RunFolderError: a file is missing, damaged, or belongs to another model.
        """
        checkpoints.load(self.engine, path, self.config.checkpoint)
