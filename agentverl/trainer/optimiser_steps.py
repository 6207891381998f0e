"""A batch cut into mini-batches, one optimiser step on each: how many, how large, how weighted."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentverl.protocol.data_proto import DataProto
from agentverl.settings.root import Settings
from agentverl.settings.seeds import derive_seed
from agentverl.trainer.mini_batches import mini_batches
from agentverl.workers.losses import aggregation_of, loss_weight

Update = Callable[[DataProto], Mapping[str, float]]
"""One optimiser step on a mini-batch; returns its metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """How a model learns from a step's batch."""

    prompts: int
    """Of one mini-batch."""
    epochs: int
    shuffle_seed: int | None
    """None keeps the order of the prompts."""
    loss_agg_mode: str
    loss_scale_factor: float

    @classmethod
    def of_actor(cls, settings: Settings) -> "StepPlan":
        """What `actor.*` says."""
        actor = settings.actor_rollout_ref.actor
        return cls(
            prompts=actor.ppo_mini_batch_size,
            epochs=actor.ppo_epochs,
            shuffle_seed=_shuffle_seed(settings) if actor.shuffle else None,
            loss_agg_mode=actor.weight_mode,
            loss_scale_factor=_scale(settings),
        )

    @classmethod
    def of_critic(cls, settings: Settings) -> "StepPlan":
        """What `critic.*` says, and where it is silent `actor.*`."""
        critic = settings.critic.completed(settings.actor_rollout_ref.actor)
        return cls(
            prompts=critic.ppo_mini_batch_size,
            epochs=critic.ppo_epochs,
            shuffle_seed=_shuffle_seed(settings) if critic.shuffle else None,
            loss_agg_mode=critic.loss_agg_mode,
            loss_scale_factor=_scale(settings),
        )

    def steps(self, prompts: int) -> int:
        """Optimiser steps that a batch of so many prompts takes."""
        return -(-prompts // self.prompts) * self.epochs

    def run(self, batch: DataProto, step: int, update: Update) -> dict[str, float]:
        """Update on every mini-batch of a step's batch, each token with its weight in it; the metrics over all."""
        seed = None if self.shuffle_seed is None else derive_seed(self.shuffle_seed, "mini-batches", step)
        collected: dict[str, list[float]] = defaultdict(list)
        for part in mini_batches(batch, prompts=self.prompts, epochs=self.epochs, seed=seed):
            part.batch["loss_weight"] = loss_weight(part, self.loss_agg_mode, self.loss_scale_factor)
            for name, value in update(part).items():
                collected[name].append(value)
        return {name: _reduced(name, values) for name, values in collected.items()}


def _shuffle_seed(settings: Settings) -> int:
    seed = settings.actor_rollout_ref.actor.data_loader_seed
    return settings.trainer.seed if seed is None else seed


def _scale(settings: Settings) -> float:
    # The longest response allowed, so that padding never counts.
    return settings.actor_rollout_ref.actor.loss_scale_factor or settings.data.max_response_length


def _reduced(name: str, values: list[float]) -> float:
    match aggregation_of(name):
        case "max":
            return max(values)
        case "min":
            return min(values)
    return sum(values) / len(values)
