"""What the configuration says to the rollout room, in that room's own terms."""

from typing import Any

from agentverl.agent_loops.limits import ChatLimits
from agentverl.rollout.groups import GroupPolicy
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.settings.rollout import SamplingSettings
from agentverl.settings.root import Settings


def chat_limits(settings: Settings) -> ChatLimits:
    """The limits of a chat, in tokens, turns and calls."""
    rollout, multi_turn = settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.rollout.multi_turn
    return ChatLimits(
        max_response_length=settings.data.max_response_length,
        max_model_len=rollout.max_model_len,
        max_tokens_per_turn=multi_turn.max_tokens_per_turn,
        max_trajectory_tokens=multi_turn.max_trajectory_tokens,
        max_assistant_turns=multi_turn.max_assistant_turns,
        max_user_turns=multi_turn.max_user_turns,
        max_parallel_calls=multi_turn.max_parallel_calls,
        max_tool_response_length=multi_turn.max_tool_response_length,
        tool_response_truncate_side=multi_turn.tool_response_truncate_side,
        max_consecutive_invalid_calls=multi_turn.max_consecutive_invalid_calls,
        reasoning=multi_turn.reasoning,
    )


def runner_settings(settings: Settings) -> RunnerSettings:
    """What a runner of episodes is told."""
    rollout, agent = settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.rollout.agent
    return RunnerSettings(
        limits=chat_limits(settings),
        default_agent_loop=rollout.agent_loop,
        environment=agent.environment,
        environment_kwargs=agent.environment_kwargs,
        run_seed=rollout.seed if rollout.seed is not None else settings.trainer.seed,
        trajectory_timeout_seconds=agent.trajectory_timeout_seconds,
        generate_timeout_seconds=agent.generate_timeout_seconds,
        max_tokens_per_request=agent.max_tokens_per_request,
        environment_timeout_seconds=agent.environment_timeout_seconds,
        start_timeout_seconds=agent.start_timeout_seconds,
        close_timeout_seconds=agent.close_timeout_seconds,
        max_retries=agent.max_retries,
        retry_backoff_seconds=agent.retry_backoff_seconds,
        score_from=settings.reward.score_from,
        has_custom_reward=settings.reward.is_own,
        deterministic=settings.trainer.deterministic,
        debug=settings.trainer.debug,
    )


def rollouts_settings(settings: Settings) -> RolloutsSettings:
    """How trajectories are sampled, how many run at a time, and what failures mean."""
    rollout = settings.actor_rollout_ref.rollout
    return RolloutsSettings(
        sampling_params=sampling_params(rollout, ignore_eos=rollout.ignore_eos),
        validation_sampling_params=sampling_params(rollout.val_kwargs, ignore_eos=rollout.ignore_eos),
        max_concurrent_trajectories=rollout.agent.max_concurrent_trajectories,
        group_policy=GroupPolicy(incomplete_groups=rollout.incomplete_groups, min_group_size=rollout.min_group_size),
        max_excluded_fraction=rollout.max_excluded_fraction,
        close_timeout_seconds=rollout.agent.close_timeout_seconds,
        deterministic=settings.trainer.deterministic,
    )


def sampling_params(sampling: SamplingSettings, *, ignore_eos: bool) -> dict[str, Any]:
    """The sampling parameters of each request, under the names that rollout servers take."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "ignore_eos": ignore_eos,
        "logprobs": True,
    }
