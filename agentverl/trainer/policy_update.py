"""From a batch of scored trajectories to optimiser steps: log-probs, reference, advantages, loss weights, actor."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from agentverl.algorithms.estimation import estimate_advantages
from agentverl.algorithms.kl import get_kl_controller, kl_in_reward
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.root import Settings
from agentverl.settings.seeds import derive_seed
from agentverl.trainer.credit import apply_end_policies, assign_advantages, group_index
from agentverl.trainer.mini_batches import mini_batches
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.workers.losses import loss_weight


class PolicyWorkers(Protocol):
    """What the update asks of the workers that hold the policy and its reference."""

    def compute_log_prob(self, data: DataProto) -> DataProto: ...
    def compute_ref_log_prob(self, data: DataProto) -> DataProto: ...
    def update_actor(self, data: DataProto) -> Mapping[str, float]: ...


def optimiser_steps(settings: Settings) -> int:
    """Optimiser steps that a batch of `train_batch_size` prompts takes."""
    actor = settings.actor_rollout_ref.actor
    return -(-settings.data.train_batch_size // actor.ppo_mini_batch_size) * actor.ppo_epochs


class PolicyUpdate:
    """One step's update; keeps the KL coefficient, which may adapt from step to step."""

    def __init__(self, settings: Settings, workers: PolicyWorkers) -> None:
        self._settings = settings
        self._actor = settings.actor_rollout_ref.actor
        self._workers = workers
        self._policies = settings.actor_rollout_ref.rollout.on_end.policies()
        self.kl_controller = get_kl_controller(settings.algorithm.kl_ctrl)

    def learn(self, batch: DataProto, step: int, watch: Stopwatch) -> dict[str, float]:
        """Update the policy from a batch; adds the columns it computes to the batch and returns the metrics."""
        apply_end_policies(batch, self._policies)
        metrics = self._log_probs(batch, watch)
        with watch.phase("adv"):
            metrics |= self._rewards(batch)
            self._advantages(batch)
        with watch.phase("update_actor"):
            metrics |= self._update_actor(batch, step)
        return metrics

    def _log_probs(self, batch: DataProto, watch: Stopwatch) -> dict[str, float]:
        metrics: dict[str, float] = {}
        # With one optimiser step on the weights that sampled, the old log-probs are the current ones, detached.
        if optimiser_steps(self._settings) > 1 or self._settings.algorithm.use_kl_in_reward:
            with watch.phase("old_log_prob"):
                computed = self._workers.compute_log_prob(batch)
            batch.batch["old_log_probs"] = computed.batch["log_probs"]
        if self._settings.needs_reference:
            with watch.phase("ref"):
                computed = self._workers.compute_ref_log_prob(batch)
            batch.batch["ref_log_prob"] = computed.batch["log_probs"]
        return metrics

    def _rewards(self, batch: DataProto) -> dict[str, float]:
        algorithm = self._settings.algorithm
        if not algorithm.use_kl_in_reward:
            scores = batch.batch.ragged("token_level_scores")
            batch.batch["token_level_rewards"] = Ragged(scores.values.clone(), scores.offsets)
            return {}
        scores, mask = batch.batch.ragged("token_level_scores"), batch.batch.ragged("response_mask")
        coefficient = self.kl_controller.value
        rewards, divergence = kl_in_reward(
            scores.to_padded(),
            batch.batch.ragged("old_log_probs").to_padded(),
            batch.batch.ragged("ref_log_prob").to_padded(),
            mask.to_padded(),
            coefficient,
            algorithm.kl_penalty,
        )
        batch.batch["token_level_rewards"] = Ragged.from_padded(rewards, scores.lengths)
        self.kl_controller.update(current_kl=divergence, n_steps=len(batch))
        return {"actor/reward_kl_penalty": divergence, "actor/reward_kl_penalty_coeff": coefficient}

    def _advantages(self, batch: DataProto) -> None:
        algorithm = self._settings.algorithm

        def estimate(rewards: torch.Tensor, mask: torch.Tensor, index: Any) -> tuple[torch.Tensor, torch.Tensor]:
            inputs = {
                "token_level_rewards": rewards,
                "response_mask": mask,
                "index": index,
                "gamma": algorithm.gamma,
                "lam": algorithm.lam,
                "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo,
                "config": algorithm,
            }
            return estimate_advantages(algorithm.adv_estimator, inputs)

        assign_advantages(batch, estimate, group_index(batch, self._policies))

    def _update_actor(self, batch: DataProto, step: int) -> dict[str, float]:
        seed = self._actor.data_loader_seed if self._actor.data_loader_seed is not None else self._settings.trainer.seed
        parts = mini_batches(
            batch,
            prompts=self._actor.ppo_mini_batch_size,
            epochs=self._actor.ppo_epochs,
            seed=derive_seed(seed, "mini-batches", step) if self._actor.shuffle else None,
        )
        scale = self._actor.loss_scale_factor or self._settings.data.max_response_length
        collected: dict[str, list[float]] = defaultdict(list)
        for part in parts:
            part.batch["loss_weight"] = loss_weight(part, self._actor.loss_agg_mode, scale)
            for name, value in self._workers.update_actor(part).items():
                collected[name].append(value)
        return {name: _reduced(name, values) for name, values in collected.items()}


def _reduced(name: str, values: list[float]) -> float:
    """verl's rule: a name that holds `max` or `min` keeps the extreme, any other the mean."""
    if "max" in name:
        return max(values)
    if "min" in name:
        return min(values)
    return sum(values) / len(values)
