"""The running parts of a run: workers, servers, runner, rollouts, journal and loggers, opened and closed together."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agentverl import blocking, garbage, plugins
from agentverl.checkpoint_engine.seats import MEGABYTE
from agentverl.errors import RunFolderError
from agentverl.loop_thread import LoopThread
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.episode import EpisodeResult, Group
from agentverl.rollout.health import look_after
from agentverl.rollout.rollouts import Rollouts
from agentverl.settings.root import Settings
from agentverl.single_controller.launcher import Placement
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.tracking.base import RunInfo, Tracking
from agentverl.tracking.dumps import dump_samples
from agentverl.tracking.journal import Journal, Written
from agentverl.tracking.rendering import trajectory
from agentverl.trainer.placement import placement_of
from agentverl.trainer.preparation import Prepared
from agentverl.trainer.recording import picked, trained_advantages
from agentverl.trainer.rollout_settings import rollouts_settings
from agentverl.trainer.runners import open_runner
from agentverl.trainer.validation import ValidationOutcome, dump_rows
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker, PolicyRun
from agentverl.workers.critic import CriticWorker
from agentverl.workers.rollout_server import RolloutServerWorker
from agentverl.workers.servers import HybridServers, Servers, StandaloneServers

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class OptimiserSteps:
    """Of a whole run; -1 where it is unknown."""

    actor: int = -1
    critic: int = -1


class Session:
    """Opens what a run needs; `close` ends it in the opposite order, also where opening failed half-way.

    Args:
        trains: whether the workers also hold the policy's training engine, or only serve.
        placement: where the workers stand; by the settings, unless it is given.
    """

    def __init__(
        self,
        settings: Settings,
        prepared: Prepared,
        folder: Path,
        *,
        trains: bool = False,
        optimiser_steps: OptimiserSteps | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.settings = settings
        self.prepared = prepared
        self.folder = folder
        self._placement = placement or placement_of(settings, folder / "logs")
        self._unwritable: set[Path] = set()
        self.critic: WorkerGroup | None = None
        """The workers of the critic, where one is trained."""
        self._closing = ExitStack()
        with self._closing:
            self._open(trains, optimiser_steps or OptimiserSteps())
            self._closing = self._closing.pop_all()

    def _open(self, trains: bool, optimiser_steps: OptimiserSteps) -> None:
        settings, closing = self.settings, self._closing
        blocking.inline = settings.trainer.debug
        self._places = self._placement.open()
        closing.callback(self._places.close)
        # Before anything is written: a run that cannot start leaves nothing behind.
        self._places.reserve("actor_rollout_ref", *self._later_roles(trains))
        self.journal = Journal(self.folder / "journal")
        closing.callback(self.journal.close)
        policy = (settings.actor_rollout_ref, self._policy_run(trains, optimiser_steps.actor))
        self.workers = self._places.start("actor_rollout_ref", WorkerClass(ActorRolloutRefWorker, policy))
        closing.callback(self.workers.close)
        blocking.in_passing_thread(self.workers.init_model)
        if trains and settings.needs_critic:
            self._open_critic(optimiser_steps.critic)
        # At a breakpoint the loop stands still, which is no stall.
        self.thread = LoopThread(stall_seconds=None) if settings.trainer.debug else LoopThread()
        closing.callback(self.thread.close)
        self._servers = self._make_servers(trains)
        closing.callback(lambda: self.thread.end(self._servers.stop(), "the rollout servers", _CLOSE_SECONDS))
        replicas = self.thread.run(self._servers.start())
        router = plugins.find("routers", settings.actor_rollout_ref.rollout.router)(replicas)
        if not self._places.in_one_process:
            closing.callback(self.thread.start(look_after(lambda: map(router.check, router.known))).cancel)
        runner, judging = open_runner(settings, self.prepared, self._places, self.thread, self.journal, closing)
        self.rollouts = Rollouts(
            runner,
            router,
            rollouts_settings(settings),
            thread=self.thread,
            judging=judging,
        )
        closing.callback(self.rollouts.close)
        closing.callback(garbage.look_at_all_again)
        garbage.leave_alone_what_is_there()

    def _later_roles(self, trains: bool) -> list[str]:
        critic = ["critic"] if trains and self.settings.needs_critic else []
        return [*critic, *(["rollout"] if self.settings.actor_rollout_ref.rollout.nnodes else [])]

    def _make_servers(self, trains: bool) -> Servers:
        rollout = self.settings.actor_rollout_ref.rollout
        if not rollout.nnodes:
            return HybridServers(self.workers)
        made = WorkerClass(RolloutServerWorker, (self.settings.actor_rollout_ref, self._policy_run(trains)))
        group = self._places.start("rollout", made)
        self._closing.callback(group.close)
        bucket_bytes = rollout.checkpoint_engine.update_weights_bucket_megabytes * MEGABYTE
        return StandaloneServers(group, self.workers, bucket_bytes)

    def _open_critic(self, optimiser_steps: int) -> None:
        settings, roles = self.settings, self.settings.actor_rollout_ref
        critic, model = settings.critic.completed(roles.actor), settings.critic.model.beside(roles.model)
        made = WorkerClass(CriticWorker, (critic, model, settings.trainer.device, optimiser_steps))
        self.critic = self._places.start("critic", made)
        self._closing.callback(self.critic.close)
        blocking.in_passing_thread(self.critic.init_model)

    def save_checkpoint(self, folder: Path) -> None:
        """Write the state of all models into folders of their own."""
        for name, workers in self._models():
            (folder / name).mkdir()
            workers.save_checkpoint(folder / name)

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is still being written beside training."""
        return any(self.workers.is_saving())

    def wait_for_checkpoint(self) -> None:
        """Return once it is on disk."""
        self.workers.wait_for_checkpoint()

    def load_checkpoint(self, folder: Path) -> None:
        """Go on from what `save_checkpoint` wrote; the servers need `synchronise_weights` afterwards.

        Raises:
            RunFolderError: a file is missing, damaged, or belongs to another model.
        """
        for name, workers in self._models():
            workers.load_checkpoint(folder / name)

    def _models(self) -> list[tuple[str, WorkerGroup]]:
        return [("actor", self.workers), *([("critic", self.critic)] if self.critic is not None else [])]

    def _policy_run(self, trains: bool, optimiser_steps: int = -1) -> PolicyRun:
        return PolicyRun(
            device=self.settings.trainer.device,
            seed=self.settings.trainer.seed,
            deterministic=self.settings.trainer.deterministic,
            needs_actor=trains,
            needs_reference=trains and self.settings.needs_reference,
            correction=self.settings.algorithm.rollout_correction,
            optimiser_steps=optimiser_steps,
        )

    def open_tracking(self, *, total_steps: int | None, first_step: int) -> None:
        """Start the loggers; what they show live begins here."""
        trainer = self.settings.trainer
        run = RunInfo(
            folder=self.folder,
            project_name=trainer.project_name,
            experiment_name=trainer.experiment_name,
            config=self.settings.model_dump(mode="json"),
            total_steps=total_steps,
            first_step=first_step,
            debug=trainer.debug,
        )
        self.tracking = Tracking(trainer.logger, run)
        self._closing.callback(self.tracking.close)

    def rest_servers(self) -> None:
        """Let training have the memory of the servers until the next weights."""
        self.thread.run(self._servers.rest())

    def synchronise_weights(self, version: int) -> None:
        """Wake the servers with the policy's weights, under a version number; returns once they serve them."""
        self.thread.run(self._servers.update_weights(version, self.rollouts.router))

    def memory(self) -> dict[str, float]:
        """What the fullest process of the workers held in each phase since the last call, as metrics."""
        most: dict[str, float] = {}
        for _, workers in self._models():
            for held in workers.memory():
                most |= {name: max(value, most.get(name, 0.0)) for name, value in held.items()}
        return most

    def record_step(self, step: int, groups: list[Group], batch: DataProto) -> None:
        """Write into the journal which prompts a step trained on, and with which advantages."""
        self.journal.step(step, [group.uid for group in groups], trained_advantages(batch))
        if self.settings.trainer.rollout_data_dir:
            results = [result for group in groups for result in group.results]
            self._dump(Path(self.settings.trainer.rollout_data_dir), step, results)

    def record_validation(self, step: int, outcome: ValidationOutcome) -> None:
        """Keep a validation's samples, and show a few of them to whoever watches."""
        self._dump(self.folder / "validation", step, outcome.results)
        if self.settings.trainer.validation_data_dir:
            self._dump(Path(self.settings.trainer.validation_data_dir), step, outcome.results)
        for result in picked(outcome.results, self.settings.trainer.log_val_generations):
            assert result.written is not None
            self._show(result.written)

    def close(self) -> None:
        """End all parts; may be called twice."""
        self._closing.close()

    def _show(self, written: Written) -> None:
        try:
            record = written.read()
        except (OSError, ValueError) as error:  # the runner's machine has a disk of its own, or is slow to share it
            logger.warning("a trajectory in %s cannot be shown from here: %s", written.file, error)
        else:
            self.tracking.show(trajectory(record, decode=self.prepared.decode))

    def _dump(self, folder: Path, step: int, results: list[EpisodeResult]) -> None:
        """Write a copy of what the journal has; like the journal it does not end the run when it fails later."""
        try:
            dump_samples(folder, step, dump_rows(results, step))
        except RunFolderError as error:
            if folder not in self._unwritable:
                logger.warning("%s; training goes on", error)
            self._unwritable.add(folder)
