"""From a batch of scored trajectories to optimiser steps: log-probs, reference, values, advantages, critic, actor."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from agentverl.algorithms.kl import get_kl_controller
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.episode import Group
from agentverl.settings.root import Settings
from agentverl.trainer.advantages import asked_for, assign_advantages
from agentverl.trainer.correction import correct, stand_in_for_old_policy
from agentverl.trainer.credit import apply_end_policies, apply_void_turns, group_index, set_reward_baselines
from agentverl.trainer.optimiser_steps import StepPlan
from agentverl.trainer.penalised_rewards import assign_rewards
from agentverl.trainer.policy_filtration import filtered
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.workers.column_names import actor_inputs, critic_inputs, model_inputs


class TrainedWorkers(Protocol):
    """Workers that hold a model and its optimiser, which may be offloaded."""

    def load_training_state(self) -> Any: ...
    def offload_training_state(self) -> Any: ...


class PolicyWorkers(TrainedWorkers, Protocol):
    """What the update asks of the workers that hold the policy and its reference."""

    def compute_log_prob(self, data: DataProto) -> DataProto: ...
    def compute_ref_log_prob(self, data: DataProto) -> DataProto: ...
    def update_actor(self, data: DataProto) -> Mapping[str, float]: ...


class CriticWorkers(TrainedWorkers, Protocol):
    """What the update asks of the workers that hold the critic."""

    def compute_values(self, data: DataProto) -> DataProto: ...
    def update_critic(self, data: DataProto) -> Mapping[str, float]: ...


class PolicyUpdate:
    """One step's update; keeps the KL coefficient, which may adapt from step to step."""

    def __init__(
        self,
        settings: Settings,
        workers: PolicyWorkers,
        critic: CriticWorkers | None = None,
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._critic = critic
        self._policies = settings.actor_rollout_ref.rollout.on_end.policies()
        self.asked = asked_for(settings.algorithm.adv_estimator)
        self.kl_controller = get_kl_controller(settings.algorithm.kl_ctrl)

    def set_baselines(self, batch: DataProto, greedy: Mapping[str, Group]) -> None:
        """Let the batch know what the greedy samples of its prompts earned."""
        set_reward_baselines(batch, greedy, self._policies)

    def learn(self, batch: DataProto, step: int, watch: Stopwatch) -> dict[str, float]:
        """Update the policy from a batch; adds the columns it computes to the batch and returns the metrics."""
        algorithm = self._settings.algorithm
        apply_end_policies(batch, self._policies)
        metrics = {"training/void_turns": apply_void_turns(batch, algorithm.void_turns)}
        self._log_probs(batch, watch)
        critic = self._critic
        if critic is not None:
            with watch.phase("values"):
                batch.batch["values"] = critic.compute_values(critic_inputs(batch)).batch["values"]
        with watch.phase("adv"):
            metrics |= assign_rewards(batch, algorithm, self.kl_controller)
            metrics |= correct(batch, algorithm.rollout_correction)
            assign_advantages(batch, group_index(batch, self._policies), algorithm)
        learnt = filtered(batch, algorithm.pf_ppo, self._settings.trainer.seed, step) if algorithm.use_pf_ppo else batch
        if critic is not None:
            with watch.phase("update_critic"), _training_state(critic):
                metrics |= StepPlan.of_critic(self._settings).run(
                    learnt, step, lambda part: critic.update_critic(critic_inputs(part))
                )
        if step > self._settings.trainer.critic_warmup or critic is None:
            with watch.phase("update_actor"), _training_state(self._workers):
                metrics |= StepPlan.of_actor(self._settings).run(
                    learnt, step, lambda part: self._workers.update_actor(actor_inputs(part))
                )
        return metrics

    def _log_probs(self, batch: DataProto, watch: Stopwatch) -> None:
        if self._needs_old_log_probs:
            batch.meta_info["calculate_sum_pi_squared"] = "sum_pi_squared" in self.asked
            with watch.phase("old_log_prob"):
                computed = self._workers.compute_log_prob(model_inputs(batch))
            batch.batch["old_log_probs"] = computed.batch["log_probs"]
            if "sum_pi_squared" in computed.batch:
                batch.batch["sum_pi_squared"] = computed.batch["sum_pi_squared"]
        if self._settings.algorithm.rollout_correction.bypass_mode:
            stand_in_for_old_policy(batch)
        if self._settings.needs_reference:
            with watch.phase("ref"):
                computed = self._workers.compute_ref_log_prob(model_inputs(batch))
            batch.batch["ref_log_prob"] = computed.batch["log_probs"]

    @property
    def _needs_old_log_probs(self) -> bool:
        """With one optimiser step on the weights that sampled, the old log-probs are the current ones, detached."""
        algorithm = self._settings.algorithm
        if algorithm.rollout_correction.bypass_mode:
            return "sum_pi_squared" in self.asked
        several = StepPlan.of_actor(self._settings).steps(self._settings.data.train_batch_size) > 1
        return (
            several
            or algorithm.use_kl_in_reward
            or algorithm.rollout_correction.corrects
            or bool({"old_log_probs", "sum_pi_squared"} & self.asked)
        )


@contextmanager
def _training_state(workers: TrainedWorkers) -> Iterator[None]:
    """Within it, what is offloaded stays on the device from one mini-batch to the next."""
    workers.load_training_state()
    try:
        yield
    finally:
        workers.offload_training_state()
