"""What training asks of its settings: unbent sampling, batches that divide, micro-batches that hold a sequence."""

from collections.abc import Iterator

from agentverl.settings.correction_checks import check_correction
from agentverl.settings.known_names import (
    ESTIMATORS,
    WITH_VALUES,
    WITHOUT_GROUP,
)
from agentverl.settings.micro_batches import MicroBatchLimit
from agentverl.settings.root import Settings


def check_training(settings: Settings) -> list[str]:
    """The problems that training has with its settings, one line each."""
    found = [
        *_sampling(settings),
        *_batches(settings),
        *_critic(settings),
        *_samples(settings),
        *_micro_batches(settings),
    ]
    return found + check_correction(settings)


def _sampling(s: Settings) -> Iterator[str]:
    rollout = s.actor_rollout_ref.rollout
    if rollout.temperature == 0:
        yield "rollout.temperature=0 leaves nothing to chance, so nothing is learnt; set it above 0, such as 1.0"
    neutral = {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    for key in rollout.bends:
        yield (
            f"rollout.{key}={getattr(rollout, key)} bends the distribution that training samples from, so its "
            f"log-probabilities would be wrong; set it to {neutral[key]} (rollout.val_kwargs.{key} is free)"
        )


def _batches(s: Settings) -> Iterator[str]:
    actor, rollout, data = s.actor_rollout_ref.actor, s.actor_rollout_ref.rollout, s.data
    if data.train_batch_size % actor.ppo_mini_batch_size:
        yield (
            f"data.train_batch_size={data.train_batch_size} is no multiple of actor.ppo_mini_batch_size="
            f"{actor.ppo_mini_batch_size} (both in prompts); make the second divide the first"
        )
    if not data.train_files and data.train_size < data.train_batch_size:
        yield (
            f"data.train_size={data.train_size} is below data.train_batch_size={data.train_batch_size}: "
            "no batch is ever full; raise the first or lower the second"
        )
    estimator = s.algorithm.adv_estimator
    if rollout.n == 1 and estimator in ESTIMATORS - WITHOUT_GROUP:
        yield f"rollout.n=1: {estimator} compares samples of a prompt, so one alone teaches nothing; set rollout.n=8"
    if rollout.incomplete_groups == "train" and rollout.min_group_size > rollout.n:
        yield f"rollout.min_group_size={rollout.min_group_size} is above rollout.n={rollout.n}; no group reaches it"


def _critic(s: Settings) -> Iterator[str]:
    estimator = s.algorithm.adv_estimator
    if estimator in WITH_VALUES and not s.needs_critic:
        yield f"critic.enable=false: algorithm.adv_estimator={estimator} needs a critic; drop one of the two"
    if estimator in ESTIMATORS - WITH_VALUES and s.needs_critic:
        yield f"critic.enable=true: algorithm.adv_estimator={estimator} reads no values; set that to gae, or drop this"
    prompts = s.critic.completed(s.actor_rollout_ref.actor).ppo_mini_batch_size
    if s.needs_critic and s.data.train_batch_size % prompts:
        yield (
            f"data.train_batch_size={s.data.train_batch_size} is no multiple of critic.ppo_mini_batch_size={prompts} "
            "(both in prompts); make the second divide the first"
        )


def _samples(s: Settings) -> Iterator[str]:
    algorithm = s.algorithm
    if algorithm.adv_estimator == "gdpo" and not algorithm.gdpo_reward_keys:
        yield "algorithm.adv_estimator=gdpo needs algorithm.gdpo_reward_keys: components of the reward, as [acc,format]"
    weights, keys = algorithm.gdpo_reward_weights, algorithm.gdpo_reward_keys
    if weights and len(weights) != len(keys):
        yield f"algorithm.gdpo_reward_weights has {len(weights)} entries for {len(keys)} algorithm.gdpo_reward_keys"
    if algorithm.filter_groups.enable and s.actor_rollout_ref.rollout.n == 1:
        yield "algorithm.filter_groups.enable=true: rollout.n=1 makes groups of one, which never differ; set it to 8"


def _micro_batches(s: Settings) -> Iterator[str]:
    roles = s.actor_rollout_ref
    yield from _fits(
        s, roles.actor.micro_batch_limit, "actor.ppo_max_token_len_per_gpu", "actor.ppo_micro_batch_size_per_gpu"
    )
    if roles.old_log_prob_limit != roles.actor.micro_batch_limit:
        yield from _log_probs_fit(s, roles.old_log_prob_limit, "rollout")
    if s.needs_critic:
        update, values = s.critic.micro_batch_limit, s.critic.values_limit
        yield from _fits(s, update, "critic.ppo_max_token_len_per_gpu", "critic.ppo_micro_batch_size_per_gpu")
        if values != update:
            names = ("critic.forward_max_token_len_per_gpu", "critic.forward_micro_batch_size_per_gpu")
            yield from _fits(s, values, *names)
    if s.needs_reference and roles.ref_log_prob_limit != roles.actor.micro_batch_limit:
        yield from _log_probs_fit(s, roles.ref_log_prob_limit, "ref")


def _log_probs_fit(s: Settings, limit: MicroBatchLimit, role: str) -> Iterator[str]:
    return _fits(s, limit, f"{role}.log_prob_max_token_len_per_gpu", f"{role}.log_prob_micro_batch_size_per_gpu")


def _fits(s: Settings, limit: MicroBatchLimit, tokens_key: str, sequences_key: str) -> Iterator[str]:
    if limit.max_tokens is None and limit.max_sequences is None:
        yield f"{sequences_key} must be set where micro-batches are not cut by tokens"
    longest = s.data.max_prompt_length + s.data.max_response_length
    context = s.actor_rollout_ref.rollout.max_model_len
    if context is not None:
        longest = min(longest, context)
    if limit.max_tokens is not None and limit.max_tokens < longest:
        yield (
            f"{tokens_key}={limit.max_tokens} is below the longest sequence, {longest} tokens (data.max_prompt_length="
            f"{s.data.max_prompt_length} + data.max_response_length={s.data.max_response_length}); set it to {longest}"
        )
