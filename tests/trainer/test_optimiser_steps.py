"""A plan cuts a batch into mini-batches, weighs their tokens, and keeps means and extremes of what they report."""

import numpy as np
import pytest
import torch

from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.compose import compose_words
from agentverl.trainer.optimiser_steps import StepPlan

WORDS = ("actor.ppo_mini_batch_size=2", "actor.ppo_epochs=2", "data.train_batch_size=4", "data.max_response_length=8")


def batch() -> DataProto:
    """Three prompts, the second with two samples; two tokens each, of which the last sample has one."""
    mask = Ragged.from_list([[1, 1], [1, 1], [1, 1], [1, 0]], torch.int64)
    fields = {"uid": ["a", "b", "b", "c"], "trajectory_id": ["t0", "t1", "t2", "t3"]}
    return DataProto.from_dict(
        tensors={"response_mask": mask},
        non_tensors={name: np.array(values, dtype=object) for name, values in fields.items()},
    )


def test_each_mini_batch_has_its_own_weights_and_metrics_keep_means_and_extremes() -> None:
    plan, weights = StepPlan.of_actor(compose_words(WORDS)), []

    def update(part: DataProto) -> dict[str, float]:
        weights.append(part.batch.ragged("loss_weight").values.tolist())
        number = float(len(weights))
        return {"actor/loss": number, "critic/values/max": number, "critic/values/min": number}

    metrics = plan.run(batch(), step=1, update=update)
    assert weights == [pytest.approx([1 / 6] * 6), [1.0, 0.0]] * 2
    assert len(weights) == plan.steps(3) == 4
    assert metrics == {"actor/loss": 2.5, "critic/values/max": 4.0, "critic/values/min": 1.0}


def test_a_critic_learns_as_the_actor_does_unless_it_is_told_otherwise() -> None:
    gae = ("algorithm.adv_estimator=gae", "actor.loss_agg_mode=token-sum", "actor.shuffle=true")
    settings = compose_words((*WORDS, *gae))
    assert StepPlan.of_critic(settings) == StepPlan.of_actor(settings)
    own = ("critic.ppo_epochs=3", "critic.shuffle=false", "critic.loss_agg_mode=token-mean")
    critic = StepPlan.of_critic(compose_words((*WORDS, *gae, *own)))
    assert (critic.prompts, critic.epochs, critic.shuffle_seed, critic.loss_agg_mode) == (2, 3, None, "token-mean")


def test_the_longest_response_allowed_is_what_sums_are_divided_by() -> None:
    words = (*WORDS, "actor.loss_agg_mode=seq-mean-token-sum-norm")
    assert StepPlan.of_actor(compose_words(words)).loss_scale_factor == 8
    assert StepPlan.of_actor(compose_words((*words, "actor.loss_scale_factor=5"))).loss_scale_factor == 5
