"""ActorRolloutRefWorker: the policy in its three roles - trained, sampled from, and as it was at the start."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentverl import blocking, device_memory
from agentverl.checkpoint_engine.base import CheckpointEngine
from agentverl.checkpoint_engine.seats import Seat
from agentverl.data.model_folder import resolve_model_path
from agentverl.engines.base import BaseEngine
from agentverl.errors import BadInputError
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.replica_spec import ReplicaSpec
from agentverl.settings import precision
from agentverl.settings.engine import FSDPSettings
from agentverl.settings.micro_batches import MicroBatchLimit
from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.ports import free_port
from agentverl.workers import checkpoints
from agentverl.workers.engine_settings import (
    engine_settings,
    make_engine,
    micro_batch,
    optimizer_settings,
    resolve_device,
)
from agentverl.workers.entropy_classes import with_entropy_by_class
from agentverl.workers.losses import loss_weight, ppo_loss
from agentverl.workers.offloading import Residence
from agentverl.workers.replicas import make_replica, replica_spec
from agentverl.workers.serving_worker import ServingWorker
from agentverl.workers.silent_rows import without_silent_rows
from agentverl.workers.training_step import TRAINING_STEP
from agentverl.workers.training_worker import TrainingWorker
from agentverl.workers.weight_update import send_weights, update_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """What the worker has to know of the run beyond its own section."""

    device: str = "auto"
    """`trainer.device`"""
    seed: int = 0
    deterministic: bool = False
    needs_actor: bool = True
    """False: the policy is only sampled from."""
    needs_reference: bool = False
    optimiser_steps: int = -1
    """Of the whole run, for schedules that decay; -1 where it is unknown."""
    correction: RolloutCorrectionSettings | None = None
    """`algorithm.rollout_correction`, whose bypass mode has a loss of its own."""
    folder: Path | None = None
    """The model folder, where `model.path` is resolved already."""
    tokenizer: Any = None
    """The tokenizer, where it is loaded already."""


class ActorRolloutRefWorker(TrainingWorker, ServingWorker):
    """Holds the training engine, the reference and the rollout server of one policy.

    Call `init_model` first, then `start_replica` on the event loop that the server shall live on, and `update_weights`
    before the first request.

    Args:
        config: the section `actor_rollout_ref`.
        run: what else the worker has to know.
    """

    _trained = "actor"

    def __init__(self, config: ActorRolloutRefSettings, run: PolicyRun | None = None) -> None:
        self.config = config
        self.run = run or PolicyRun()
        self._device = resolve_device(self.run.device)
        self._folder = self.run.folder or resolve_model_path(str(config.model.path)).path
        self._actor: BaseEngine | None = None
        self._reference: BaseEngine | None = None
        self._reference_residence: Residence | None = None
        self._checkpoint_engine: CheckpointEngine | None = None
        self._seat: Seat | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the policy, and its reference where a KL term needs it.

        Raises:
            BadInputError: the folder, the engine or the architecture cannot work.
        """
        config = self.config
        if self.run.needs_actor:
            optimizer = optimizer_settings(config.actor.optim, config.actor.grad_clip, self.run.optimiser_steps)
            self._actor = self._make_engine(
                config.actor.fsdp_config,
                config.old_log_prob_limit,
                optimizer=optimizer,
                enable_gradient_checkpointing=config.model.enable_gradient_checkpointing,
                train_micro_batch=micro_batch(config.actor.micro_batch_limit),
                share_weights=self._lends_weights,
            )
            self._residence = Residence(self._actor, config.actor.fsdp_config, self._device)
        if self.run.needs_reference:
            self._reference = self._make_engine(self._reference_fsdp(), config.ref_log_prob_limit)
            self._reference_residence = Residence(self._reference, config.ref.fsdp_config, self._device)

    def _make_engine(self, fsdp: FSDPSettings, infer_limit: MicroBatchLimit, **more: Any) -> BaseEngine:
        settings = engine_settings(
            self.config.model, self._folder, fsdp, self._device, infer_micro_batch=micro_batch(infer_limit), **more
        )
        return make_engine(self.config.actor.strategy, settings)

    @property
    def _lends_weights(self) -> bool:
        """Whether servers of other processes read the weights where they are."""
        rollout = self.config.rollout
        return self._device == "cpu" and rollout.nnodes > 0 and rollout.checkpoint_engine.backend == "shared_memory"

    def _reference_fsdp(self) -> FSDPSettings:
        """The reference's section; `auto` computes as the actor does, or the KL would measure rounding."""
        mine, actor = self.config.ref.fsdp_config, self.config.actor.fsdp_config
        return mine.model_copy(update={"dtype": actor.dtype}) if mine.dtype == "auto" else mine

    @property
    def actor(self) -> BaseEngine:
        """The training engine, after `init_model`."""
        if self._actor is None:
            raise BadInputError("there is no actor: call init_model() of a worker whose run needs one")
        return self._actor

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def start_replica(self) -> None:
        """Make the rollout server and let it serve, on the running event loop.

        Raises:
            BadInputError: the server, the model or the limits cannot work.
        """
        self._checkpoint_engine = self._make_checkpoint_engine()
        # Loading a model takes seconds, which the loop must not miss.
        spec = await blocking.call(server_spec, self.config, self.run, self._folder)
        self._replica = await blocking.call(make_replica, self.config.rollout.name, spec)
        await self._replica.init_hybrid(self)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def rest_replica(self) -> None:
        """Let training have the rollout server's memory until `update_weights`, with `rollout.free_cache_engine`.

        The weights are dropped too, as the next ones come from the actor.
        """
        if self.config.rollout.free_cache_engine:
            await self.replica().sleep(keep_weights=False)
        device_memory.of_process.enter(None)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def update_weights(self, version: int) -> None:
        """Bring the actor's weights to this rank's server, and wake it up.

        A server that is awake serves its old weights until it holds the complete set.

        Raises:
            WeightTransferError: the set did not arrive; the server keeps serving the old one, or sleeps on.
        """
        assert self._checkpoint_engine is not None, "start_replica comes first"
        with device_memory.of_process.phase("update_weights"):
            with self.residence.on_device():
                weights = self.actor.get_per_tensor_param()
                await update_replica(self._checkpoint_engine, weights, self.replica(), version)
            await self.replica().wake_up()
        device_memory.of_process.enter("gen")

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    async def weights_address(self) -> str:
        """Where servers in other processes meet this rank for new weights: `host:port`."""
        return f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:{free_port(None)}"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def send_weights(self, seat: Seat, version: int) -> None:
        """Bring the actor's weights to servers in other processes; rank 0 has the seat, the others iterate along.

        Raises:
            WeightTransferError: the set did not arrive at all of them.
        """
        mine = seat if self.rank == 0 else None
        if self._checkpoint_engine is None or mine != self._seat:
            self._checkpoint_engine, self._seat = self._make_checkpoint_engine(), mine
        with self.residence.on_device():
            await send_weights(self._checkpoint_engine, self.actor.get_per_tensor_param(), mine, version)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        """`log_probs` of the response tokens under the actor, and `entropys` with `actor.calculate_entropy`.

        Where `meta_info` says `calculate_sum_pi_squared`, also `sum_pi_squared` of their distributions.
        """
        with device_memory.of_process.phase("old_log_prob"), self.residence.on_device():
            return self.actor.infer_batch(
                data,
                calculate_entropy=self.config.actor.calculate_entropy,
                calculate_sum_pi_squared=bool(data.meta_info.get("calculate_sum_pi_squared")),
            )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """`log_probs` of the response tokens under the reference policy."""
        if self._reference is None or self._reference_residence is None:
            raise BadInputError("there is no reference policy: the run was made without needs_reference")
        with device_memory.of_process.phase("ref"), self._reference_residence.on_device():
            return self._reference.infer_batch(data)

    @register(dispatch_mode=TRAINING_STEP)
    def update_actor(self, data: DataProto) -> dict[str, float]:
        """One optimiser step on all of `data`, which is one mini-batch; returns metrics under verl's names.

        Columns: those of `ppo_loss`; without `loss_weight` the tokens are weighted by `actor.loss_agg_mode`.
        """
        config = self.config.actor
        if "loss_weight" not in data.batch:
            data = data.select()
            data.batch["loss_weight"] = loss_weight(data, config.weight_mode, config.loss_scale_factor)
        with device_memory.of_process.phase("update_actor"), self.residence.on_device(optimizer=True):
            metrics = self.actor.train_batch(
                without_silent_rows(config, data.select(non_tensor_batch_keys=[])),
                with_entropy_by_class(partial(ppo_loss, config, correction=self.run.correction)),
                calculate_entropy=config.calculate_entropy or config.entropy_coeff != 0,
            )
            metrics["lr"] = self.actor.lr_scheduler_step()
        return {name if "/" in name else f"actor/{name}": value for name, value in metrics.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path: Path) -> None:
        """Write what `actor.checkpoint.save_contents` names into an existing folder."""
        checkpoints.save(self.actor, path, self.config.actor.checkpoint, self.config.model)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def is_saving(self) -> bool:
        """Whether the checkpoint is still being written, with `actor.checkpoint.async_save`."""
        return self.actor.is_saving

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait_for_checkpoint(self) -> None:
        """Return once the checkpoint is on disk; raises what kept it from that."""
        self.actor.wait_for_checkpoint()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: Path) -> None:
        """Go on from what `save_checkpoint` wrote; the rollout server needs `update_weights` afterwards.

        Raises:
            RunFolderError: a file is missing, damaged, or belongs to another model.
        """
        checkpoints.load(self.actor, path, self.config.actor.checkpoint)

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def export(self, path: Path) -> None:
        """Write the folder `huggingface` into an existing one: model and tokenizer, as `model.path` takes them."""
        checkpoints.export(self.actor, path, self.config.model)


def server_spec(config: ActorRolloutRefSettings, run: PolicyRun, folder: Path) -> ReplicaSpec:
    """What a rollout server of the policy is told."""
    device = resolve_device(run.device)
    dtype = config.actor.fsdp_config.dtype if config.rollout.dtype == "auto" else config.rollout.dtype
    return replica_spec(
        config.model,
        folder,
        config.rollout,
        run.tokenizer,
        dtype=precision.resolve(dtype, device),
        device=device,
        seed=run.seed,
        deterministic=run.deterministic,
        load_weights=not run.needs_actor,
    )
