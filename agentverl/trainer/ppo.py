"""PPOTrainer: the one loop. Roll out, score, credit, update, synchronise, validate, save."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console

from agentverl import blocking
from agentverl.data.dataloader import PromptLoader
from agentverl.errors import RequeueError
from agentverl.protocol.column_store import drop
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.batching import assemble
from agentverl.settings.root import Settings
from agentverl.single_controller.pools import ResourcePoolManager
from agentverl.trainer.curves import draw_curves
from agentverl.trainer.data_metrics import data_metrics
from agentverl.trainer.group_filter import GroupFilter
from agentverl.trainer.group_metrics import group_metrics
from agentverl.trainer.interruption import Interruption
from agentverl.trainer.memory import MemoryMeter
from agentverl.trainer.optimiser_steps import StepPlan
from agentverl.trainer.placement import placement_of
from agentverl.trainer.policy_update import PolicyUpdate
from agentverl.trainer.preparation import Prepared, prepare
from agentverl.trainer.problems import Problems
from agentverl.trainer.run_folder import RunFolder, require_writable
from agentverl.trainer.schedule import Sampled, SynchronousSchedule
from agentverl.trainer.seeding import seed_process
from agentverl.trainer.session import OptimiserSteps, Session
from agentverl.trainer.state import TrainerState
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.trainer.summary import Summary, ValidationPoint, say_resumed
from agentverl.trainer.validation import validate

if TYPE_CHECKING:
    from agentverl.single_controller.ray_group import RayWorkerGroup


class PPOTrainer:
    """Trains a policy; `fit` does all of a run, `begin`, `train_step` and `end` are its parts.

    Args:
        config: the whole configuration.
        resource_pool_manager: the pools of the roles `actor_rollout_ref` and `critic`; None: all roles share one of
            `trainer.nnodes` times `trainer.n_gpus_per_node` places.
        ray_worker_group_cls: with `trainer.launcher=ray`, what is made in place of a RayWorkerGroup.
    """

    def __init__(
        self,
        config: Settings,
        resource_pool_manager: ResourcePoolManager | None = None,
        ray_worker_group_cls: "type[RayWorkerGroup] | None" = None,
    ) -> None:
        self.settings = config
        self._pools = resource_pool_manager
        self._group_class = ray_worker_group_cls
        self.state = TrainerState()
        self.interruption = Interruption()
        """Ends the run after the step that it is in, once it is requested."""
        self._memory = MemoryMeter()
        self._incomplete: int | None = None
        """The step of the checkpoint that is being written beside training."""

    def fit(self) -> Summary:
        """The whole run, from the last complete checkpoint where there is one; ends with `summary.json`.

        Raises:
            RequeueError: SIGTERM came; everything is saved.
            TrainingStoppedError: the run cannot go on.
        """
        with self._memory, self.interruption:
            try:
                self.begin()
                while self.state.step < self.total_steps and not self.settings.trainer.val_only:
                    if self.interruption.requested:
                        self._requeue()
                    self.train_step()
                return self._finish()
            finally:
                self.end()

    def begin(self) -> None:
        """Start servers and workers, take up the last checkpoint, validate the policy as it begins.

        Raises:
            BadInputError: whatever keeps the run from starting, together.
        """
        settings, trainer = self.settings, self.settings.trainer
        self.run, prepared = _open(settings)
        seed_process(trainer.seed, "begin")
        self.loader = PromptLoader(
            prepared.train_rows,
            batch_size=0 if trainer.val_only else settings.data.train_batch_size,
            shuffle=settings.data.shuffle,
            seed=settings.data.seed if settings.data.seed is not None else trainer.seed,
        )
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * self.loader.steps_per_epoch
        with self.run.starting():
            self.session = Session(
                settings,
                prepared,
                self.run.path,
                trains=True,
                optimiser_steps=self._optimiser_steps(),
                placement=placement_of(settings, self.run.path / "logs", self._pools, self._group_class),
            )
        self._update = PolicyUpdate(settings, self.session.workers, self.session.critic)
        filters = settings.algorithm.filter_groups
        self._schedule = SynchronousSchedule(
            self.session.rollouts,
            self.loader,
            settings.actor_rollout_ref.rollout.n,
            group_filter=GroupFilter(filters) if filters.enable else None,
            greedy_baseline="reward_baselines" in self._update.asked,
        )
        unlogged = self._resume()
        self.session.open_tracking(total_steps=self.total_steps, first_step=self.state.step)
        if not self.state.validations and (trainer.val_before_train or trainer.val_only):
            unlogged |= self._validate()
        if unlogged:
            self.session.tracking.log(unlogged, step=self.state.step)

    def train_step(self) -> dict[str, float]:
        """One step: a batch of prompts rolled out and learnt from; returns its metrics."""
        settings, session, watch = self.settings, self.session, Stopwatch()
        step = self.state.step + 1
        session.rollouts.step = step
        seed_process(settings.trainer.seed, "step", step)
        metrics: dict[str, float] = {"training/global_step": step, "training/epoch": self.loader.epoch}
        with watch.phase("step"):
            with watch.phase("gen"):
                sampled = self._schedule.next_groups()
            session.rest_servers()
            batch, learnt = blocking.in_passing_thread(self._learn, sampled, watch)
            metrics |= learnt
            session.record_step(step, sampled.groups, batch)
            with watch.phase("update_weights"):
                session.synchronise_weights(step)
            self.state.step = step
            if settings.trainer.test_freq > 0 and self._due(settings.trainer.test_freq):
                with watch.phase("testing"):
                    metrics |= self._validate()
            self.state.metrics = dict(metrics)
            if self._due(settings.trainer.save_freq):
                with watch.phase("save_checkpoint"):
                    self._save()
            elif self._incomplete is not None and not session.is_saving:
                self._complete_checkpoint()
        response_tokens = len(batch.batch.ragged("response_mask").values)
        total_tokens = response_tokens + int(batch.batch.tensor("prompt_length").sum())
        metrics |= watch.metrics(total_tokens=total_tokens, response_tokens=response_tokens)
        metrics |= session.memory()
        metrics["perf/cpu_memory_used_gb"] = self._memory.sample() / 2**30
        session.tracking.log(metrics, step=step)
        return metrics

    def _learn(self, sampled: Sampled, watch: Stopwatch) -> tuple[DataProto, dict[str, float]]:
        step, groups = self.session.rollouts.step, sampled.groups
        batch = assemble(groups, meta_info={"global_steps": step})
        try:
            if sampled.greedy:
                self._update.set_baselines(batch, sampled.greedy)
            metrics = sampled.metrics | self._update.learn(batch, step, watch)
        finally:
            drop(batch)
        metrics |= data_metrics(batch, max_prompt_length=self.settings.data.max_prompt_length)
        return batch, metrics | group_metrics(groups)

    def end(self) -> None:
        """Stop servers, workers, threads and loggers; the run's folder is given back."""
        for part in ("session", "run"):
            if hasattr(self, part):
                getattr(self, part).close()

    def _optimiser_steps(self) -> OptimiserSteps:
        """Of the whole run, which schedules of the learning rate are spread over."""
        settings, prompts = self.settings, self.settings.data.train_batch_size
        warmup = settings.trainer.critic_warmup if settings.needs_critic else 0
        actor = max(self.total_steps - warmup, 0) * StepPlan.of_actor(settings).steps(prompts)
        critic = self.total_steps * StepPlan.of_critic(settings).steps(prompts)
        return OptimiserSteps(actor=max(actor, 1), critic=max(critic, 1))

    def _due(self, frequency: int) -> bool:
        last = self.state.step == self.total_steps
        return last or (frequency > 0 and self.state.step % frequency == 0)

    def _requeue(self) -> None:
        step = self.state.step
        self._complete_checkpoint()
        if step not in self.run.checkpoints.steps():
            self._save()
            self._complete_checkpoint()
        raise RequeueError(f"ended by SIGTERM after step {step}, which is saved in {self.run.path}; start it again")

    def _resume(self) -> dict[str, float]:
        """Take up the last checkpoint; returns the metrics of its step where a kill came before they were logged."""
        step = self.run.resumed_step
        if step is not None:
            say_resumed(self.run.path, step, Console())
            folder = self.run.checkpoints.of(step)
            self.state = TrainerState.load(folder)
            blocking.in_passing_thread(self.session.load_checkpoint, folder)
            self.loader.load_state_dict(self.state.loader)
            if self.state.kl_coefficient is not None:
                self._update.kl_controller.value = self.state.kl_coefficient
        # A run that was killed before its first checkpoint repeats its step 0 too, the first validation.
        last = -1 if step is None else step
        missing = self.run.roll_back(last)
        self.session.journal.supersede(last)
        self.session.rollouts.step = self.state.step
        self.session.synchronise_weights(self.state.step)
        self.session.rollouts.load_state_dict(self.state.rollouts or {"groups": []})
        return dict(self.state.metrics) if missing else {}

    def _validate(self) -> dict[str, float]:
        session, step = self.session, self.state.step
        if not session.prepared.validation_rows:
            return {}
        outcome = validate(
            session.rollouts,
            session.prepared.validation_rows,
            self.settings.actor_rollout_ref.rollout.val_kwargs.n,
            step,
        )
        self.state.validations.append(ValidationPoint(step, outcome.success, outcome.tool_call_rate))
        session.record_validation(step, outcome)
        return outcome.metrics

    def _save(self) -> None:
        session, state = self.session, self.state
        state.loader = self.loader.state_dict()
        state.rollouts = session.rollouts.state_dict()
        state.kl_coefficient = self._update.kl_controller.value
        saved = replace(state, wall_seconds=self._wall_seconds())

        def write(folder: Any) -> None:
            session.save_checkpoint(folder)
            saved.save(folder)

        self._complete_checkpoint()
        self.run.checkpoints.begin(state.step, write)
        self._incomplete = state.step
        if not self.settings.actor_rollout_ref.actor.checkpoint.async_save:
            self._complete_checkpoint()

    def _complete_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written, if there is one, and give it its name."""
        step, self._incomplete = self._incomplete, None
        if step is not None:
            self.run.checkpoints.complete(step, self.session.wait_for_checkpoint)
            self.run.checkpoints.keep_newest(self.settings.trainer.max_actor_ckpt_to_keep)

    def _wall_seconds(self) -> float:
        return self.state.wall_seconds + time.time() - psutil.Process().create_time()

    def _finish(self) -> Summary:
        self._complete_checkpoint()
        self.session.close()
        draw_curves(self.run.path)
        summary = Summary.of(
            self.state.validations,
            wall_seconds=self._wall_seconds(),
            peak_memory_bytes=self._memory.peak_bytes,
            steps=self.state.step,
        )
        self.run.write_summary(summary.as_dict())
        return summary


def _open(settings: Settings) -> tuple[RunFolder, Prepared]:
    """The run's folder and all its parts; what is wrong with both is reported together."""
    trainer, problems = settings.trainer, Problems()
    run = problems.attempt(
        lambda: RunFolder.open(
            trainer.run_folder, settings, resume_mode=trainer.resume_mode, resume_from=trainer.resume_from_path
        )
    )
    for key in ("rollout_data_dir", "validation_data_dir"):
        if trainer[key]:
            problems.attempt(partial(require_writable, Path(trainer[key]), f"trainer.{key}"))
    splits = [*([] if trainer.val_only else ["train"]), *(["val"] if settings.validates else [])]
    try:
        prepared = prepare(settings, splits=splits, trains=True, problems=problems)
    except BaseException:
        if run is not None:
            run.withdraw()
        raise
    assert run is not None
    return run, prepared
