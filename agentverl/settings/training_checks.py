"""What training asks of its settings: unbent sampling, batches that divide, micro-batches that hold a sequence."""

from collections.abc import Iterator

from agentverl.settings.actor import MicroBatchLimit
from agentverl.settings.known_names import (
    ESTIMATORS,
    POLICY_LOSSES,
    SHIPPED_ESTIMATORS,
    SHIPPED_POLICY_LOSSES,
    UNMET,
    WITHOUT_GROUP,
)
from agentverl.settings.root import Settings


def check_training(settings: Settings) -> list[str]:
    """The problems that training has with its settings, one line each."""
    return [*_sampling(settings), *_batches(settings), *_micro_batches(settings)]


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
    if estimator in UNMET:
        yield (
            f"algorithm.adv_estimator={estimator} needs {UNMET[estimator]}, which this version does not have; "
            "grpo needs only several samples a prompt"
        )
    elif estimator in ESTIMATORS - SHIPPED_ESTIMATORS:
        yield (
            f"algorithm.adv_estimator={estimator} comes with a later version; this one has "
            f"{' and '.join(sorted(SHIPPED_ESTIMATORS))}, and package.module:function works too"
        )
    elif rollout.n == 1 and estimator in ESTIMATORS - WITHOUT_GROUP:
        yield f"rollout.n=1: {estimator} compares samples of a prompt, so one alone teaches nothing; set rollout.n=8"
    loss = actor.policy_loss.loss_mode
    if loss in POLICY_LOSSES - SHIPPED_POLICY_LOSSES:
        yield (
            f"actor.policy_loss.loss_mode={loss} comes with a later version; this one has "
            f"{' and '.join(sorted(SHIPPED_POLICY_LOSSES))}, and package.module:function works too"
        )
    if rollout.incomplete_groups == "train" and rollout.min_group_size > rollout.n:
        yield f"rollout.min_group_size={rollout.min_group_size} is above rollout.n={rollout.n}; no group reaches it"


def _micro_batches(s: Settings) -> Iterator[str]:
    roles = s.actor_rollout_ref
    yield from _fits(
        s, roles.actor.micro_batch_limit, "actor.ppo_max_token_len_per_gpu", "actor.ppo_micro_batch_size_per_gpu"
    )
    if roles.old_log_prob_limit != roles.actor.micro_batch_limit:
        yield from _log_probs_fit(s, roles.old_log_prob_limit, "rollout")
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
